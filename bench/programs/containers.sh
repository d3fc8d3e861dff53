#!/bin/sh
# containers.sh IMAGE FOLDER COUNT one|all: what a person writes without a launcher. FOLDER is mounted, and the
# task in each container marks there that it runs. `one`: one container after the other, on the network that is
# there; `all`: on a network of their own, all at the same time.
set -eu
image=$1 folder=$2 count=$3 how=$4
network=bench-$$
task='mktemp "$0/up-XXXXXX" >/dev/null; until test -e "$0/end"; do sleep 0.05; done'

begin() {
    docker run -d --init --label tf-launcher-bench "$@" -v "$folder:$folder" "$image" sh -c "$task" "$folder"
}

if [ "$how" = all ]; then
    docker network create --label tf-launcher-bench "$network" >/dev/null
    for i in $(seq "$count"); do
        begin --network "$network" --name "$network-$i" >/dev/null &
    done
    wait
    ids=$(for i in $(seq "$count"); do echo "$network-$i"; done)
else
    ids=$(for i in $(seq "$count"); do begin; done)
fi
docker wait $ids >/dev/null
docker rm $ids >/dev/null
[ "$how" = one ] || docker network rm "$network" >/dev/null
