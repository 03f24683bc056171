"""Two small models for `make demo`: the same task, the same seeds, half the steps of the shipped runs."""

from compolens import AdamW, HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer

quick = {"steps": 3000, "optimizer": AdamW(lr=2e-3, warmup=300), "evaluations": 10}
runs = {
    "softmax": Run(SoftmaxTransformer(), Hyperteacher(), **quick),
    "hypernetwork": Run(HypernetworkTransformer(), Hyperteacher(), **quick),
}
