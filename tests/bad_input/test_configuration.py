"""Macros, names, values and files of a configuration that are wrong."""

import pytest

from tests.bad_input.conftest import CHECKOUT, SMALLEST, content, launch, recipe_flags, refused


@pytest.mark.parametrize(
    ("leave_out", "name"), [("--gin.CORPUS=", "CORPUS"), ("--gin.MODEL_DIR=", "MODEL_DIR")], ids=["CORPUS", "MODEL_DIR"]
)
@pytest.mark.parametrize("program", ["recipe", "train", "index"])
def test_a_macro_left_required(finished, leave_out, name, program):
    flags = [flag for flag in recipe_flags(finished / "mine", finished / "x") if not flag.startswith(leave_out)]
    refused(launch(program, *flags), name, "--gin.")
    assert not (finished / "x").exists()


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("--gin.MODEL_DRI='x'", "MODEL_DRI"),
        ("--gin.Training.stepz=3", "stepz"),
        ("--gin.Trainning.steps=3", "Trainning"),
        ("--gin.Training.steps=", "Training.steps"),
        ("--gin.Training.steps=[1,", "Training.steps"),
        ("--gin.Training.steps=%NOWHERE", "NOWHERE"),
        ("--gin.Identifiers.scheme='alphabetical'", "'alphabetical'"),
        ("--gin.run.system=@nothing", "nothing"),
        ("--gin_file=gin_configs/models/huge.gin", "gin_configs/models/huge.gin"),
        ("--unknown_flag=3", "unknown_flag"),
        ("stray", "stray"),
    ],
)
def test_a_misspelt_name_or_value(finished, flag, wanted):
    before = content(finished / "runs")
    done = launch("recipe", *recipe_flags(finished / "mine", finished / "runs" / "mine"), flag)
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert wanted in done.stderr
    if wanted != "unknown_flag":  # absl's own words
        refused(done, wanted)
    assert content(finished / "runs") == before


def test_a_gin_file_with_an_error_is_named_with_the_line(finished, tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text("# mine\nTraining.steps = 3\nTraining.stepz = 4\n")
    refused(launch("recipe", *SMALLEST, f"--gin_file={file}"), file, "stepz")
    file.write_text("# mine\nTraining.steps = = 3\n")
    refused(launch("recipe", *SMALLEST, f"--gin_file={file}"), file, "2")


@pytest.mark.parametrize("file", sorted(p.name for p in (CHECKOUT / "gin_configs" / "systems").glob("*.gin")))
def test_every_configuration_says_in_its_head_what_it_requires(file):
    """A macro that is REQUIRED stands in the comment that opens the file."""
    text = (CHECKOUT / "gin_configs" / "systems" / file).read_text()
    head = text.split("\n\n", 1)[0]
    assert head.startswith("# ") and "python -m launch." in head
    for line in text.splitlines():
        if line.replace(" ", "").endswith("=%gin.REQUIRED"):
            assert line.split("=")[0].strip() in head


def test_settings_that_cannot_work_are_refused_before_anything_is_made(finished, tmp_path):
    """Not after the minutes that the stages before training take."""
    flags = recipe_flags(finished / "mine", tmp_path / "runs" / "x")
    for flag, wanted in (
        ("--gin.Training.warmup_steps=50", "warmup_steps"),
        ("--gin.Training.batch_size=0", "batch_size"),
        ("--gin.Network.width=33", "width"),
        ("--gin.Decoding.beams=0", "beams"),
    ):
        refused(launch("recipe", *flags, flag), wanted)
    assert not list(tmp_path.rglob("manifest.json"))
