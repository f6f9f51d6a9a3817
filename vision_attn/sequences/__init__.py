"""Sequences and two inputs: encoder-decoders and question answerers, with their data and figures.

Names load on first use: an image classifier needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vision_attn.sequences.data.dates import Dates
    from vision_attn.sequences.data.module import ExampleData
    from vision_attn.sequences.data.pairs import ExampleSource, Pairs, Vocabulary
    from vision_attn.sequences.data.questions import PlantedQuestions, Questions
    from vision_attn.sequences.data.strings import PlantedStrings
    from vision_attn.sequences.figures import alignment, word_weights
    from vision_attn.sequences.learners import Learner, QuestionLearner, SequenceLearner
    from vision_attn.sequences.models.decoding import SequenceModel, beam, greedy
    from vision_attn.sequences.models.encoders import (
        ConvEncoder,
        Encoder,
        ImageEncoder,
        RecurrentEncoder,
        SelfAttentionEncoder,
        ViTEncoder,
    )
    from vision_attn.sequences.models.questions import QuestionAnswerer
    from vision_attn.sequences.models.seq2seq import Seq2Seq
    from vision_attn.sequences.models.transformer import Transformer

_HOMES = {
    "ConvEncoder": "models.encoders",
    "Dates": "data.dates",
    "Encoder": "models.encoders",
    "ExampleData": "data.module",
    "ExampleSource": "data.pairs",
    "ImageEncoder": "models.encoders",
    "Learner": "learners",
    "Pairs": "data.pairs",
    "PlantedQuestions": "data.questions",
    "PlantedStrings": "data.strings",
    "QuestionAnswerer": "models.questions",
    "QuestionLearner": "learners",
    "Questions": "data.questions",
    "RecurrentEncoder": "models.encoders",
    "SelfAttentionEncoder": "models.encoders",
    "Seq2Seq": "models.seq2seq",
    "SequenceLearner": "learners",
    "SequenceModel": "models.decoding",
    "Transformer": "models.transformer",
    "ViTEncoder": "models.encoders",
    "Vocabulary": "data.pairs",
    "alignment": "figures",
    "beam": "models.decoding",
    "greedy": "models.decoding",
    "word_weights": "figures",
}

__all__ = [
    "ConvEncoder",
    "Dates",
    "Encoder",
    "ExampleData",
    "ExampleSource",
    "ImageEncoder",
    "Learner",
    "Pairs",
    "PlantedQuestions",
    "PlantedStrings",
    "QuestionAnswerer",
    "QuestionLearner",
    "Questions",
    "RecurrentEncoder",
    "SelfAttentionEncoder",
    "Seq2Seq",
    "SequenceLearner",
    "SequenceModel",
    "Transformer",
    "ViTEncoder",
    "Vocabulary",
    "alignment",
    "beam",
    "greedy",
    "word_weights",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
