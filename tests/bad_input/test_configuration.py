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
    assert head.startswith("# ") and ("gr-jax " in head or "python -m launch." in head)
    for line in text.splitlines():
        if line.replace(" ", "").endswith("=%gin.REQUIRED"):
            assert line.split("=")[0].strip() in head


def test_settings_that_cannot_work_are_refused_before_anything_is_made(finished, tmp_path):
    """Not after the minutes that the stages before training take."""
    flags = recipe_flags(finished / "mine", tmp_path / "runs" / "x")
    for flag, wanted in (
        ("--gin.Training.microbatches=7", "microbatches"),
        ("--gin.Training.batch_size=0", "batch_size"),
        ("--gin.Network.width=33", "width"),
        ("--gin.Decoding.beams=0", "beams"),
    ):
        refused(launch("recipe", *flags, flag), wanted)
    assert not list(tmp_path.rglob("manifest.json"))


def test_what_a_gin_file_imports_and_includes(finished, tmp_path):
    """The cause stands first, and few of the files after it."""
    flags = recipe_flags(finished / "mine", tmp_path / "runs" / "x")
    (tmp_path / "circle.gin").write_text(f"include '{tmp_path / 'circle.gin'}'\n")
    (tmp_path / "imports.gin").write_text("import nothing.of_this_name\n")
    (tmp_path / "includes.gin").write_text("include 'nothing.gin'\n")
    (tmp_path / "noise.gin").write_bytes(bytes(range(128, 256)))
    for name, cause in (
        ("circle", "files include each other"),
        ("imports", "ModuleNotFoundError: No module named 'nothing'"),
        ("includes", "Unable to open file: nothing.gin"),
        ("noise", "'utf-8' codec can't decode"),
    ):
        last = refused(launch("recipe", *flags, f"--gin_file={tmp_path / name}.gin"), noisy=True)
        assert last.startswith(f"error: {cause}") and len(last) < 600, last


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--gin.A=%B", "--gin.B=%A", "--gin.run.shared_dir=%A"], "macros are defined by each other"),
        (["--gin.import nothing"], "ModuleNotFoundError"),
        (['--gin.MODEL_DIR="a\\x00b"'], "no file can have this name"),
        (['--gin.MODEL_DIR="\\ud800"'], "no file can have this name"),
        (["--gin.MODEL_DIR=%CORPUS"], "MODEL_DIR is the folder of the documents"),
        (["--gin.run.source=@BeirFolder"], "run.source is no source"),
        (["--gin.run.source=3"], "run.source is no source"),
        ([f"--gin.Training.steps={10**400}"], "no number of 32 bits"),
        ([f"--gin.Training.learning_rate={10**400}"], "not a number"),
        (["--gin.Training.steps=" + "[" * 95 + "]" * 95], "not a whole number"),
    ],
)
def test_values_that_cannot_be(finished, tmp_path, flags, wanted):
    before = content(finished)
    done = launch("recipe", *recipe_flags(finished / "mine", tmp_path / "runs" / "x"), *flags)
    refused(done, wanted)
    assert content(finished) == before
