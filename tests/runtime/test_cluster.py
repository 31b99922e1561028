from __future__ import annotations

import pytest

from qurate.runtime.cluster import ClusterError, start_ray


def test_an_address_where_no_cluster_answers_is_refused() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(ClusterError, match="--ray must be 'local' or the address of a Ray cluster, got 'nowhere'"):
        start_ray("nowhere", 1)
