"""Does mixed precision cost anything? `compolens train trained_models/precision.py --out trained_models/precision`.

Each run is one that is shipped in single precision, trained again with products in bfloat16. The yardstick is the same run
trained again in single precision by this version, whose products are taken in another order: the two differ in rounding
alone. Hyperteacher F in five seeds (10 runs of some 4 minutes on one core), S-RAVEN with 3 features in three (some 40 minutes
each; the yardstick for seed 0).
"""

from dataclasses import replace

from runs import runs as shipped

runs = {}
for s in range(5):
    for precision in ("bfloat16", "float32"):
        runs[f"F-softmax-{precision}-{s}"] = replace(shipped[f"F-softmax-{s}"], precision=precision, keep=())
for s in range(3):
    for name in ("softmax", "hyla"):
        for precision in ("bfloat16", "float32") if s == 0 else ("bfloat16",):
            again = replace(shipped[f"sraven3-{name}-{s}"], precision=precision, keep=())
            runs[f"sraven3-{name}-{precision}-{s}"] = again
