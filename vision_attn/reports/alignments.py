"""`vision-attn explain` on checkpoints of sequences and questions.

    NAME.alignment.png  text: which symbol of the source counted for which written one
    NAME.steps.png      image: an overlay for each written symbol
    NAME.looks.png      question: an overlay for each look, and NAME.words.png the words
    results.jsonl       what was read and what was written, a line each

Axes: t written symbols, s symbols of the source, h height, w width.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn import render
from vision_attn.commands import options
from vision_attn.data.images import ImageError, read_image
from vision_attn.hub import LoadedSequences, load_sequences
from vision_attn.models import ImageEncoder, QuestionAnswerer, SequenceModel, greedy
from vision_attn.render.picture import Picture
from vision_attn.reports.results import title
from vision_attn.types import Images

Pictures = dict[str, Picture]  # by what they show
ToPhoto = Callable[[np.ndarray], np.ndarray]  # a map over the network's input -> over the photo


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where an input could not be explained; the others are."""
    loaded = load_sequences(args.model)
    if not args.images:
        raise ValueError("nothing to explain: name images, or for a model of texts the texts")
    if isinstance(loaded.network, QuestionAnswerer) and not args.question:
        raise ValueError("this model answers questions: ask one with --question 'TEXT'")
    if args.processes > 1 or args.shard != (1, 1):
        raise ValueError("--processes, --shard: expected a model of classes, got one that writes")
    output = options.output_folder(args.output)
    rows, records = [], []
    with options.Report("explaining", len(args.images)) as report, torch.inference_mode():
        for name, source in _inputs(loaded, args, report):
            try:
                answer, pictures = _explained(loaded, source, args.question)
            except ValueError as error:
                report.problem(f"{source}: {error}")
                continue
            for kind, picture in pictures.items():
                render.save(picture, output / f"{name}.{kind}.png")
            records.append({"source": str(source), "question": args.question, "answer": answer})
            print(f"{source}: {answer}")
            shots = [
                render.shot(picture, output, f"{name}.{kind}", kind, f"{kind} of {source}")
                for kind, picture in pictures.items()
                if args.page
            ]
            rows.append(render.Row(str(source), answer, shots))
            report.done(1)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (output / "results.jsonl").write_text(lines, encoding="utf-8")
    if args.page:
        render.write_page(output, title(args.model), [render.Gallery("Inputs", rows)])
    return 1 if report.problems else 0


def _inputs(
    loaded: LoadedSequences, args: argparse.Namespace, report: options.Report
) -> Iterator[tuple[str, str | Path]]:
    """A name for the pictures of each input, and the input: a text or an image's path."""
    if loaded.preprocess is None:
        yield from ((f"{i:03}", text) for i, text in enumerate(args.images[: args.limit], 1))
        return
    from vision_attn.commands.explain import file_names

    files, problems = options.find_images(args.images, args.limit)
    for problem in problems:
        report.problem(problem)
    yield from zip(file_names(files), files, strict=True)


def _explained(
    loaded: LoadedSequences, source: str | Path, question: str | None
) -> tuple[str, Pictures]:
    """What the network writes or answers, and pictures of where it looked."""
    network, preprocess = loaded.network, loaded.preprocess
    if isinstance(source, str):
        assert isinstance(network, SequenceModel)
        return of_text(network, loaded, source)
    assert preprocess is not None
    try:
        photo = np.asarray(read_image(source).convert("RGB"))
    except ImageError as error:
        raise ValueError(str(error)) from error
    image = preprocess(source)[None]
    shape = photo.shape[:2]
    to_photo = lambda values: preprocess.to_original(values, (shape[1], shape[0]))  # noqa: E731
    if isinstance(network, QuestionAnswerer):
        return of_question(network, loaded, photo, image, question or "", to_photo)
    assert isinstance(network, SequenceModel)
    return of_image(network, loaded, photo, image, to_photo)


def of_text(network: SequenceModel, loaded: LoadedSequences, text: str) -> tuple[str, Pictures]:
    source = loaded.vocabularies["source"].encode([text])
    target = greedy(network, source)
    names = written(loaded, target)
    weights = network.weights(source, target)[0].float().numpy()
    picture = render.alignment(weights, names, list(text), "".join(names[:-1]))
    return "".join(names[:-1]), {"alignment": picture}


def of_image(
    network: SequenceModel,
    loaded: LoadedSequences,
    photo: Picture,
    image: Images,
    to_photo: ToPhoto,
) -> tuple[str, Pictures]:
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
    words = question.lower().rstrip("?").split()
    asked = loaded.vocabularies["question"].encode([words])
    best = int(network(image, asked).argmax())
    answer = loaded.vocabularies["answer"].symbols[best]
    looks = network.looks(image, asked)
    names = look_names(len(looks.words[0]), len(looks.maps[0]))
    pictures = {}
    if len(looks.maps[0]):
        pictures["looks"] = overlays(photo, looks.maps[0].float(), names, to_photo)
    if len(looks.words[0]):
        over_words = looks.words[0].float().numpy()
        pictures["words"] = render.word_weights(over_words, words, names[: len(over_words)])
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
