"""Counts of a service, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from xyreward import __version__
from xyreward.judges import Judge
from xyreward.judges.panel import model_judges
from xyreward.reward import Reward
from xyreward.scoring import EMPTY, Score
from xyreward.serve.line import Line
from xyreward.verdict import FAILURE_KINDS

PREFIX = "xyreward_serve_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 180)
REWARDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """All of one service; its own registry, so that two in one process do not add up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        self.requests = Counter(
            f"{PREFIX}requests",
            "Requests by endpoint and status.",
            ["endpoint", "status"],
            registry=of,
        )
        self.request_seconds = Histogram(
            f"{PREFIX}request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["endpoint"],
            buckets=SECONDS,
            registry=of,
        )
        self.answers = Counter(
            f"{PREFIX}answers",
            "Answers by what became of them: scored, empty (reward 0, no judge call), failed.",
            ["outcome"],
            registry=of,
        )
        self.failures = Counter(
            f"{PREFIX}failures", "Answers without a verdict, by kind.", ["kind"], registry=of
        )
        self.reward = Histogram(
            f"{PREFIX}reward", "Rewards given, in [0, 1].", buckets=REWARDS, registry=of
        )
        self.lot_seconds = Histogram(
            f"{PREFIX}lot_seconds",
            "The judge's time for answers judged together.",
            buckets=SECONDS,
            registry=of,
        )
        self.held = Gauge(f"{PREFIX}held_bytes", "Of requests being read or answered.", registry=of)
        # All that can occur is there from the start: a rate over a series that appears with its first
        # failure misses that failure.
        for outcome in ("scored", "empty", "failed"):
            self.answers.labels(outcome)
        for kind in FAILURE_KINDS:
            self.failures.labels(kind)

    def watch(self, line: Line, judge: Judge, reward: Reward) -> None:
        """Follow a line and what its judge spends."""
        waiting = Gauge(
            f"{PREFIX}waiting_answers", "Answers without a verdict yet.", registry=self.registry
        )
        waiting.set_function(lambda: line.waiting)
        limit = Gauge(f"{PREFIX}waiting_limit", "Above so many: 429.", registry=self.registry)
        limit.set(line.max_waiting)
        Info(f"{PREFIX}build", "What rewards mean.", registry=self.registry).info(
            {
                "version": __version__,
                "judge": judge.name,
                "rubric_version": judge.rubric_version,
                "soft": str(reward.soft).lower(),
            }
        )
        self.registry.register(_Bill(judge))

    def count(self, scores: Sequence[Score]) -> None:
        """Note what became of the answers of a request."""
        for score in scores:
            if score.failure is not None:
                self.answers.labels("failed").inc()
                self.failures.labels(score.failure.kind).inc()
                continue
            assert score.verdict is not None
            assert score.reward is not None
            self.answers.labels("empty" if EMPTY in score.verdict.flags else "scored").inc()
            self.reward.observe(score.reward)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)


class _Bill(Collector):
    """What the judge's calls did and cost; read where it is kept."""

    def __init__(self, judge: Judge) -> None:
        self._judges = model_judges(judge)

    def collect(self) -> Iterator[CounterMetricFamily]:
        rows = {
            "judge_calls": ("Replies of judge models.", lambda s: s.calls),
            "store_hits": ("Verdicts that the store had.", lambda s: s.from_store),
            "cost_usd": ("US dollars of calls whose price is known.", lambda s: s.cost_usd),
            "unpriced_calls": ("Calls whose price is unknown.", lambda s: s.unpriced_calls),
            "lost_calls": ("Calls without a reply, possibly billed.", lambda s: s.lost_calls),
            "lost_cost_usd": ("What those may cost, at most.", lambda s: s.possibly_usd),
        }
        for name, (about, value) in rows.items():
            family = CounterMetricFamily(f"{PREFIX}{name}", about, labels=["judge"])
            for one in self._judges:
                family.add_metric([one.name_without_url], value(one.stats))  # type: ignore[no-untyped-call]
            yield family
