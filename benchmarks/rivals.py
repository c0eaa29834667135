"""Other mechanisms in QuerySmasher's tables 2, 3 and 4, compared with our plans.

    python -m benchmarks.rivals [--write]

RMSE at privacy cost 1, in counts. "asked" is the printed number, or that of the mechanism's
formulas if the paper prints fewer digits; a ratio of 1 is the same mechanism, one below 1 a better
search. "s" are CPU seconds. Workloads of sums or differences of pairs on [n]^40 have prefixes on
single attributes; all have prefixes as base of ResidualPlanner+.
"""

import sys
import time

from benchmarks import options, table
from engine.analysis.certificates import WAYS, standard_workload
from engine.errors import EngineError
from engine.mechanisms import plan
from engine.privacy import Budget

PLUS, FOURIER = ("residualplanner+", {}), ("wff", {})
ROWS = [
    *(("Adult", w, PLUS, v) for w, v in zip(WAYS, (5.112, 17.621, 47.193, 47.103), strict=True)),
    *(("CPS", w, PLUS, v) for w, v in zip(WAYS, (3.181, 6.357, 8.124, 8.386), strict=True)),
    *(("Loans", w, PLUS, v) for w, v in zip(WAYS, (4.725, 14.906, 36.113, 36.046), strict=True)),
    ("CPS", "affine", PLUS, 10.012),
    ("CPS", "abs", PLUS, 10.476),
    ("Adult", "affine", PLUS, 19.395),
    ("Adult", "abs", PLUS, 19.441),
    ("Loans", "affine", PLUS, 18.082),
    ("Loans", "abs", PLUS, 18.148),
    ("[10]^40", "marginal", ("residualplanner", {}), 23.48),
    ("[10]^40", "prefix", PLUS, 36.229),
    ("[20]^40", "prefix", PLUS, 52.628),
    ("[10]^40", "range", PLUS, 41.833),
    ("[20]^40", "range", PLUS, 63.882),
    ("[10]^40", "affine", PLUS, 62.479),
    ("[10]^40", "prefix", FOURIER, 39.701),
    ("[20]^40", "prefix", FOURIER, 62.947),
    ("[20]^40", "prefix", ("wff", {"embedding": "circle"}), 62.947),
    ("[10]^40", "affine", FOURIER, 45.225),
    ("[20]^40", "affine", FOURIER, 70.311),
    ("[10]^40", "abs", FOURIER, 64.115),
    ("Adult", "<=3-way", FOURIER, 66.794),
    ("CPS", "<=3-way", FOURIER, 10.594),
    ("Loans", "<=3-way", FOURIER, 49.721),
]
HEAD = f"{'workload':<18}{'mechanism':<42}{'asked':>9}{'ours':>9}{'ratio':>8}{'s':>7}"


def main(arguments: list[str] | None = None) -> int:
    """Print one row per number; return 1 if a plan exceeds it by more than rounding costs."""
    parser = options(__file__, __doc__)
    args = parser.parse_args(arguments)
    worse = False
    with table(__file__, write=args.write) as show:
        show(HEAD)
        for schema, queries, (mechanism, chosen), number in ROWS:
            start = time.process_time()
            words = f"{mechanism} {' '.join(f'{k}={v}' for k, v in chosen.items())}".strip()
            try:
                rmse = plan(
                    standard_workload(schema, queries), Budget(pcost=1.0), mechanism, **chosen
                ).rmse
            except EngineError as error:
                show(f"{schema + ' ' + queries:<18}{words:<42}{error}")
                worse = True
                continue
            worse = worse or rmse > number * 1.0003
            seconds = time.process_time() - start
            show(
                f"{schema + ' ' + queries:<18}{words:<42}{number:>9.3f}{rmse:>9.3f}{rmse / number:>8.4f}{seconds:>7.2f}"
            )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
