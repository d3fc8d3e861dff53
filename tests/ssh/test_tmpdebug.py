import time, threading
from tests.ssh.test_api import *
from tests.ssh.test_api import at_home
@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", ["direct", "relay"])
def test_dbg(hosts, caller, way, monkeypatch):
    if way == "relay":
        monkeypatch.setattr(door, "own_addresses", lambda: ["203.0.113.1"])
    def square(args, ctx):
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            b = feed.next_batch(10)
            time.sleep(0.02)
            feed.batch_results([row * row for row in b])
    t=time.time()
    with TFCluster.run(square, None, 2, hosts="node1,node2", python=sys.executable, workdir="/") as cluster:
        def cut():
            time.sleep(1); hosts[1].cut(); time.sleep(8); hosts[1].restore()
        th = threading.Thread(target=cut); th.start()
        found = list(cluster.inference([range(start, start + 10) for start in range(0, 10000, 10)]))
        th.join()
    assert found == [r*r for r in range(10000)]
    print("TOOK", way, time.time()-t)
