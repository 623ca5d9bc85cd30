"""Measure one policy on held-out items: writing, preference, picking.

    accelerate launch recipes/evaluate.py --model embedded:smollm2-135m
    accelerate launch recipes/evaluate.py --model runs/dpo-quickstart/adapter --output-dir runs/tuned

A policy is `embedded:smollm2-135m`, a folder, a hub name, or the folder or hub name of an adapter.
Without --config it takes configs/evaluate/quickstart.yaml.
"""

from pathlib import Path

from xyreward import recipe
from xyreward.config import EvaluateRecipe, parse_arguments

DEFAULT = Path(__file__).parent.parent / "configs/evaluate/quickstart.yaml"


def main() -> None:
    recipe.use_huge_pages()
    config, arguments = parse_arguments(EvaluateRecipe, DEFAULT)
    recipe.say_hello()
    recipe.check_before_evaluation(config)
    data = recipe.load_data(config, dry_run=arguments.dry_run)
    if arguments.dry_run:
        recipe.print_estimate(config, data, times=1)
        return
    run = recipe.Run(config, arguments)
    facts = run.record_data(data)
    for warning in recipe.control_warnings(config, data):
        run.say(f"== warning: {warning}")
    run.finish(run.evaluate("evaluation", run.load_policy(), data), None, facts)


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
