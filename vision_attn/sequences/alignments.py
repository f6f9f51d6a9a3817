"""What networks of sequences and questions write or answer, and where they look.

    NAME.alignment.png  text: which symbol of the source counted for which written one
    NAME.steps.png      image: an overlay for each written symbol
    NAME.looks.png      question: an overlay for each look, and NAME.words.png the words
    results.jsonl       what was read and what was written, a line each

Axes: t written symbols, s symbols of the source, h height, w width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn import pages, render, sequences
from vision_attn.data.faults import fault_line
from vision_attn.files import claimed, write_text
from vision_attn.inference import eval_mode, infer
from vision_attn.render.picture import Picture
from vision_attn.runs.entries import as_line
from vision_attn.runs.explain import Photo, read
from vision_attn.runs.inputs import check_apart, find_images, output_folder
from vision_attn.runs.naming import file_names
from vision_attn.runs.progress import Bar, Silent
from vision_attn.sequences.models.decoding import SequenceModel, greedy
from vision_attn.sequences.models.encoders import ImageEncoder
from vision_attn.sequences.models.questions import QuestionAnswerer
from vision_attn.types import Images, LoadedSequences

__all__ = [
    "Aligned",
    "Answer",
    "explain_sequence",
    "explain_sequences",
    "of_image",
    "of_question",
    "of_text",
]

Pictures = dict[str, Picture]  # by what they show
ToPhoto = Callable[[np.ndarray], np.ndarray]  # a map over the network's input -> over the photo


@dataclass(frozen=True, eq=False)
class Answer:
    """What a network wrote or answered, and pictures of where it looked, by what they show.

    Examples:
        >>> from vision_attn.sequences.alignments import Answer
        >>> Answer("the 14th of July, 1999", "1999-07-14", {}).answer
        '1999-07-14'
    """

    source: str
    answer: str
    pictures: Pictures


@dataclass(frozen=True)
class Aligned:
    """What `explain_sequences` wrote, and a line for each input that could not be explained.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.sequences.alignments import Aligned
        >>> Aligned(Path("look")).answers
        []
    """

    folder: Path
    answers: list[Answer] = field(default_factory=list)
    page: Path | None = None
    problems: list[str] = field(default_factory=list)


def explain_sequences(
    model: LoadedSequences,
    inputs: Sequence[str],
    *,
    question: str | None = None,
    output: str | PathLike[str] = "outputs/explain",
    page: bool = False,
    limit: int | None = None,
    progress: Silent | None = None,
) -> Aligned:
    """Write what a network of sequences or questions makes of each input, and where it looks.

    inputs: texts, or files and folders of images, as the network takes them. question: for a
    network that answers questions. Raises ValueError where there is no input, or no question.
    """
    if not inputs:
        raise ValueError("nothing to explain: name images, or texts for a model of texts")
    if isinstance(model.network, QuestionAnswerer) and not question:
        raise ValueError("this model answers questions: ask one with --question 'TEXT'")
    folder = output_folder(output)
    check_apart(folder, inputs if model.preprocess is not None else [], inputs)
    rows, records, answers = [], [], []
    with claimed(folder), Bar() if progress is None else progress as shown:
        shown.start("explaining", len(inputs))
        for name, source in _named(model, inputs, limit, folder, shown):
            try:
                answer = explain_sequence(model, source, question)
            except Exception as error:  # of this input
                shown.problem(fault_line(source, error))
                continue
            for kind, picture in answer.pictures.items():
                render.save(picture, folder / f"{name}.{kind}.png")
            answers.append(answer)
            records.append({"source": str(source), "question": question, "answer": answer.answer})
            shots = [
                pages.shot(picture, folder, f"{name}.{kind}", kind, f"{kind} of {source}")
                for kind, picture in answer.pictures.items()
                if page
            ]
            rows.append(pages.Row(str(source), answer.answer, shots))
            shown.advance()
        lines = "".join(map(as_line, records))
        write_text(folder / "results.jsonl", lines)
        written_page = None
        if page:
            title = "Where it looked"
            written_page = pages.write_page(folder, title, [pages.Gallery("Inputs", rows)])
        return Aligned(folder, answers, written_page, list(shown.problems))


def _named(
    model: LoadedSequences,
    inputs: Sequence[str],
    limit: int | None,
    folder: Path,
    progress: Silent,
) -> Iterator[tuple[str, str | Path]]:
    """Yield a name for the pictures of each input, and the input: a text or an image's path."""
    if model.preprocess is None:
        yield from ((f"{i:03}", text) for i, text in enumerate(inputs[:limit], 1))
        return
    files, problems = find_images(inputs, limit)
    for problem in problems:
        progress.problem(problem)
    yield from zip(file_names(files, folder), files, strict=True)


def explain_sequence(model: LoadedSequences, source: Photo, question: str | None = None) -> Answer:
    """Return what the network writes or answers for one input, with pictures of where it looked.

    source: a text, or a photo as `explain` takes them. Raises ValueError for an input that the
    network cannot take.
    """
    with torch.inference_mode(), eval_mode(model.network):
        return _explained(model, source, question)


def _explained(model: LoadedSequences, source: Photo, question: str | None) -> Answer:
    network, preprocess = model.network, model.preprocess
    if preprocess is None:
        if not isinstance(network, SequenceModel) or not isinstance(source, str):
            raise ValueError(f"expected a text, got {type(source).__name__}")
        return Answer(source, *of_text(network, model, source))
    name, image = read(source, preprocess)
    photo, inputs = np.asarray(image), preprocess(image)[None]

    def to_photo(values: np.ndarray) -> np.ndarray:
        return preprocess.to_original(values, image.size)

    if isinstance(network, QuestionAnswerer):
        return Answer(name, *of_question(network, model, photo, inputs, question or "", to_photo))
    if not isinstance(network, SequenceModel):
        raise ValueError(f"expected a network of sequences, got {type(network).__name__}")
    return Answer(name, *of_image(network, model, photo, inputs, to_photo))


def of_text(network: SequenceModel, loaded: LoadedSequences, text: str) -> tuple[str, Pictures]:
    """Write what a network makes of a text: the output, and its alignment as a picture."""
    source = loaded.vocabularies["source"].encode([text])
    target = greedy(network, source)
    names = written(loaded, target)
    weights = network.weights(source, target)[0].float().numpy()
    picture = sequences.alignment(weights, names, list(text), "".join(names[:-1]))
    return "".join(names[:-1]), {"alignment": picture}


def of_image(
    network: SequenceModel,
    loaded: LoadedSequences,
    photo: Picture,
    image: Images,
    to_photo: ToPhoto,
) -> tuple[str, Pictures]:
    """Write what a network reads in an image: the output, and where each step looked."""
    target = greedy(network, image)
    names = written(loaded, target)
    size = (image.shape[-2], image.shape[-1])
    assert isinstance(network.encoder, ImageEncoder)
    maps = network.encoder.maps(network.weights(image, target), size)[0].float()
    return ", ".join(names[:-1]), {"steps": overlays(photo, maps, names, to_photo)}


def of_question(
    network: QuestionAnswerer,
    loaded: LoadedSequences,
    photo: Picture,
    image: Images,
    question: str,
    to_photo: ToPhoto,
) -> tuple[str, Pictures]:
    """Answer a question about an image: the answer, and each look at image and words."""
    words = question.lower().rstrip("?").split()
    symbols = loaded.vocabularies["question"].encode([words])
    best = int(infer(network, image, symbols).argmax())
    answer = loaded.vocabularies["answer"].symbols[best]
    looks = network.looks(image, symbols)
    names = look_names(len(looks.words[0]), len(looks.maps[0]))
    pictures = {}
    if len(looks.maps[0]):
        pictures["looks"] = overlays(photo, looks.maps[0].float(), names, to_photo)
    if len(looks.words[0]):
        over_words = looks.words[0].float().numpy()
        pictures["words"] = sequences.word_weights(over_words, words, names[: len(over_words)])
    return answer, pictures


def look_names(coattentions: int, maps: int) -> list[str]:
    """Of the maps: co-attentions come first, then memory hops."""
    first = [f"co-attention {i + 1}" for i in range(coattentions)]
    return first + [f"hop {i + 1}" for i in range(maps - coattentions)]


def written(loaded: LoadedSequences, target: Tensor) -> list[str]:
    """The names of the symbols of one target, `stop` for its end."""
    names = loaded.vocabularies["target"].decode(target)[0]
    return [*names, "stop"][: target.size(1)]


def overlays(
    photo: Picture, maps: Float[Tensor, "t h w"], names: Sequence[str], to_photo: ToPhoto
) -> Picture:
    """The photo, and under one scale its overlay for each map."""
    values = maps.numpy()
    style, scale = render.ColorMap(), render.times_uniform(values)
    large = render.enlarged(photo)
    panels = [render.Panel("image", large)]
    for name, one in zip(names, values, strict=True):
        picture = render.overlay(large, to_photo(one), style=style, scale=scale)
        panels.append(render.Panel(name, picture, "", scale, style))
    wide = photo.shape[1] > 3 * photo.shape[0]
    return render.heatmap_grid(panels, columns=2 if wide else 4)
