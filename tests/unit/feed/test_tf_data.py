"""Which share of data files a task has, and names that are refused before TensorFlow reads anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.common.cluster import TRAINING_ROLES
from launcher.feed.remote.tf_data import Share, share_of

ROLES = (*TRAINING_ROLES, "ps", "evaluator", "reader")


@given(st.dictionaries(st.sampled_from(ROLES), st.integers(1, 4)))
def test_the_tasks_that_train_share_everything_and_others_get_all(counts: dict[str, int]):
    cluster = {role: [f"{role}{index}:1" for index in range(count)] for role, count in counts.items()}
    shares = {
        (role, index): share_of(role, index, cluster) for role in cluster for index in range(counts[role])
    }
    training = [share for (role, _), share in shares.items() if role in TRAINING_ROLES]
    assert sorted(share.number for share in training) == list(range(len(training)))
    assert all(share.tasks == len(training) for share in training)
    others = {share for (role, _), share in shares.items() if role not in TRAINING_ROLES}
    assert others <= {Share(0, 1)}


def test_who_is_in_no_cluster_gets_all():
    assert share_of("", 0, {}) == share_of("worker", 3, {"ps": ["a:1"]}) == Share(0, 1)
