"""What `gdr` and `nci` do where nobody says otherwise; `gin_configs/systems/gdr.gin` and `nci.gin` say the same."""

from __future__ import annotations

import dataclasses

from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.settings import PseudoQueries, Training

ENCODERS = Encoders(temperature=0.02, document_length=256)
PSEUDO_QUERIES = PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6})

# A list of 16 holds others of the answer's own cluster, which weigh alpha, and, where those are fewer, documents at
# random; a step draws from it. Other queries' documents are negatives too.
MINED = Mining(shares={"cluster": 1.0, "random": 0.0})
# Document vectors cost nothing: large batches, many negatives. The network's parts move at fractions of this rate.
TRAINING = ContrastiveTraining(
    steps=200,
    batch_size=64,
    negatives=8,
    learning_rate=5e-4,
    warmup_steps=20,
    document_length=128,
    evaluate_every=50,
    checkpoint_every=50,
    held_out=0.05,
    dev_documents=2500,
    keep_best="dev_mean/RR@10",
)
ENCODER_TRAINING = dataclasses.replace(
    TRAINING,
    steps=300,
    batch_size=32,
    negatives=1,
    learning_rate=5e-5,
    warmup_steps=30,
    evaluate_every=100,
    checkpoint_every=100,
)
JOINT = dataclasses.replace(TRAINING, steps=0, batch_size=16, negatives=2, learning_rate=3e-4)

NCI_TRAINING = Training(
    steps=400,
    batch_size=32,
    warmup_steps=20,
    rates={"query": 0.5, "document": 0.0, "pseudo": 0.5},
    rdrop=0.15,
    checkpoint_every=100,
)
