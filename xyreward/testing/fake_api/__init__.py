"""A fake Messages API: a real HTTP server on loopback with latency, faults and exact counts.

    with FakeAPI(latency=0.1, faults=Faults({"529": 0.1, "prose": 0.05})) as api:
        client = AsyncAnthropic(base_url=api.base_url, api_key="any", max_retries=0)

    python -m xyreward.testing.fake_api --latency 0.1 --faults mix:0.3     as a process

docs/testing.md lists endpoints and faults.
"""

from xyreward.testing.fake_api.api import FakeAPI, FakeAPIProcess, fetch_stats
from xyreward.testing.fake_api.books import Entry, Stats
from xyreward.testing.fake_api.faults import FAULTS, MIX, ROW_FAULTS, STOPPING, Faults
from xyreward.testing.fake_api.replies import find_answer

__all__ = [
    "FAULTS",
    "MIX",
    "ROW_FAULTS",
    "STOPPING",
    "Entry",
    "FakeAPI",
    "FakeAPIProcess",
    "Faults",
    "Stats",
    "fetch_stats",
    "find_answer",
]
