"""A tiny GPT-2 of transformers on prompts of words, trained until it learns from the examples: three seeds.

    compolens train trained_models/few_shot.py --out trained_models/few_shot

Two layers of width 32; two examples before the question, 12 words, four operations, two places, two formats. A minute each
on one core. The loss counts the examples' answers beside the question's. Seed s draws weights and data.
"""

from transformers import AutoModelForCausalLM, GPT2Config

from compolens import AdamW, Run, adopt
from compolens.tasks import FewShot

words = ("cat", "dog", "sun", "sea", "red", "cup", "bed", "pig", "hat", "map", "ink", "oak")
operations = ("copy", "upper", "reverse", "plural")
adam = AdamW(lr=3e-3, betas=(0.9, 0.98), weight_decay=0.1, warmup=50, clip=None)
still = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
task = FewShot(n_examples=2, operations=operations, words=words, counted="all")
size = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": task.seq, "bos_token_id": 0, "eos_token_id": 0}
gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=task.d_out, **size, **still)).eval()
described = adopt(gpt2, task).run.architecture
runs: dict[str, Run] = {}

for s in range(3):
    runs[f"gpt2-{s}"] = Run(
        described, task, steps=4000, init_seed=s, data_seed=s, batch_size=64, optimizer=adam, evaluations=8,
        evaluation_episodes=512,
    )  # fmt: skip
