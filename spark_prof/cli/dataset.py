"""What `spark-prof report` does with a folder of recordings."""

from __future__ import annotations


def report_dataset(
    folder: str,
    format: str,  # noqa: A002 - the option's name is the contract's
    engine: str,
    width: int = 100,
    color: bool = False,
) -> str:
    """The report of all recordings in a folder, drawn.

    Args:
        folder: the folder, or its URL.
        format: text, md, html or json.
        engine: local or ray.
        width: columns of the text.
        color: whether the text is coloured.

    Raises:
        CommandError: it holds no recording, none can be read, or the engine cannot be used.
    """
    from spark_prof.dashboards.dataset_report import render_dataset
    from spark_prof.datasets.engines import Engine
    from spark_prof.datasets.report import summarize_dataset
    from spark_prof.errors import CommandError

    dataset = summarize_dataset(folder, Engine(engine))
    if not dataset.recordings:
        first = dataset.failures[0]
        raise CommandError(f"no recording in {folder} could be read: {first.name}: {first.reason}")
    return render_dataset(dataset, format, width, color)
