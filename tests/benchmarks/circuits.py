"""How well scores of edges find circuits that are known by construction: area under the precision-recall curve.

python tests/benchmarks/circuits.py [MODELS]. Prevalence is what a random order has on average.
"""

import sys
from pathlib import Path

import pandas as pd
from sklearn.metrics import average_precision_score

sys.path.insert(0, str(Path(__file__).parents[1] / "interventions"))

from wired import scored

from compolens.measures.intervals import mean_interval


def main(models: int) -> None:
    rows = []
    for seed in range(models):
        true, ways = scored(seed)
        rows.append({way: average_precision_score(true, score) for way, score in ways.items()} | {"prevalence": true.mean()})
    for way, values in pd.DataFrame(rows).items():
        lo, hi = mean_interval(values.to_numpy())
        print(f"{way:24} {values.mean():.3f} [{lo:.3f}, {hi:.3f}], least {values.min():.3f}, {models} models")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
