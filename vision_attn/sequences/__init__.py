"""Sequences and two inputs: encoder-decoders and question answerers, with their data and figures.

ExampleData and the learners are imported on first use: Lightning takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vision_attn.sequences.data.dates import Dates
from vision_attn.sequences.data.pairs import ExampleSource, Pairs, Vocabulary
from vision_attn.sequences.data.questions import PlantedQuestions, Questions
from vision_attn.sequences.data.strings import PlantedStrings
from vision_attn.sequences.figures import alignment, word_weights
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

if TYPE_CHECKING:
    from vision_attn.sequences.data.module import ExampleData
    from vision_attn.sequences.learners import Learner, QuestionLearner, SequenceLearner

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

_LATE = {
    "ExampleData": "data.module",
    "Learner": "learners",
    "QuestionLearner": "learners",
    "SequenceLearner": "learners",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"vision_attn.sequences.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
