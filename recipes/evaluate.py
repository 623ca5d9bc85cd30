"""Measure one policy on held-out items: writing, preference, picking, oracle, reference answers.

    accelerate launch recipes/evaluate.py --model embedded:smollm2-135m
    accelerate launch recipes/evaluate.py --model runs/dpo-quickstart/adapter --output-dir runs/tuned
    python recipes/evaluate.py --model chat:qwen3.5-9b@http://127.0.0.1:8000 --output-dir runs/qwen
    python recipes/evaluate.py --model answers:my.jsonl --output-dir runs/mine

A policy is `embedded:smollm2-135m`, a folder, a hub name, the folder or hub name of an adapter, one behind
an API, or a file of its answers. `xyreward eval` does the same without a checkout, with the same exit
statuses; docs/evaluate.md.
Without --config it takes configs/evaluate/quickstart.yaml.
"""

from pathlib import Path

from xyreward import recipe
from xyreward.answering import place_of
from xyreward.config import EvaluateRecipe, parse_arguments
from xyreward.evaluate_job import PreparedEvaluation

DEFAULT = Path(__file__).parent.parent / "configs/evaluate/quickstart.yaml"


def main() -> None:
    recipe.use_huge_pages()
    config, arguments = parse_arguments(EvaluateRecipe, DEFAULT)
    if place_of(config.policy.model) == "here":
        recipe.say_hello()
    job = PreparedEvaluation(config, arguments)
    if arguments.dry_run:
        job.print_estimate()
        return
    job.begin()
    with recipe.on_the_way():
        job.run()
    if job.status:
        raise SystemExit(job.status)


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
