"""Seconds of one DPO step of the quickstart on a CPU, with and without what recipes change about it.

    python benchmarks/dpo_step.py [--steps 4]

`accelerate launch` exports OMP_NUM_THREADS=1, and PyTorch puts tensors on small pages; recipes change both
(xyreward/recipe/processes.py). Each setting runs in a process of its own, one after the
other; the median of its steps, the first left out, is printed with the ratio to the recipe's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "recipe": (True, True),
    "one thread, as accelerate launch sets it": (False, True),
    "small pages": (True, False),
    "neither": (False, False),
}
CHILD = """
import runpy, sys
from xyreward import recipe
from xyreward.recipe import run
if not int(sys.argv[1]): run.use_all_cores = lambda: None
if not int(sys.argv[2]): recipe.use_huge_pages = lambda: None
import transformers
class Clock(transformers.TrainerCallback):
    def on_step_begin(self, *a, **k):
        import time; self.start = time.perf_counter()
    def on_step_end(self, *a, **k):
        import time; print("STEP", time.perf_counter() - self.start, flush=True)
import trl
make = trl.DPOTrainer.__init__
def init(self, *a, **k):
    make(self, *a, callbacks=[Clock()], **k)
trl.DPOTrainer.__init__ = init
sys.argv = ["recipes/dpo.py", "--skip-eval", *sys.argv[3:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def seconds(all_cores: bool, huge_pages: bool, steps: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable, "-c", CHILD, str(int(all_cores)), str(int(huge_pages)),
                f"--set=pairs.max_pairs={4 * steps}", f"--output-dir={folder}/run",
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
    return [float(ln.split()[1]) for ln in done.stdout.splitlines() if ln.startswith("STEP")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    steps = parser.parse_args().steps
    medians = {}
    for name, (all_cores, huge_pages) in SETTINGS.items():
        medians[name] = statistics.median(seconds(all_cores, huge_pages, steps)[1:])
        ratio = medians[name] / medians["recipe"]
        print(f"{name:42s} {medians[name]:6.1f} s a step   {ratio:.2f} x", flush=True)
    from xyreward.runs import environment

    print(json.dumps({k: environment()[k] for k in ("cpu", "cpu_count", "packages")}))


if __name__ == "__main__":
    main()
