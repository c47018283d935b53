"""Models on the Hub: names, a folder in its place, and the Hub's own client against a server that stands in for it."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import validate_repo_id

from domainwise import DomainwiseError, load_model, push_model
from domainwise.storage.discovery import discover
from domainwise.storage.hub import find_run, parse_name, push_run
from domainwise.storage.run_folder import RunFolder
from domainwise.training.prediction import predict_images
from hub_server import TOKEN, HubServer, serve_hub

RUN = Path(__file__).parents[2] / "fixtures" / "schema_1" / "run"
PUSHED = ["README.md", "best.safetensors", "config.json", "done", "records.jsonl"]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOMAINWISE_HUB", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server, with the client in this process directed to it. The client reads its environment on import only."""
    (tmp_path / "blobs").mkdir()
    with serve_hub(tmp_path / "blobs") as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def copy_run(to: Path) -> RunFolder:
    return RunFolder(shutil.copytree(RUN, to))


def assert_same_model(a: torch.nn.Module, b: torch.nn.Module) -> None:
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def copy_other(to: Path) -> RunFolder:
    """Copy the run and give it other weights and class names."""
    other = copy_run(to)
    other.write_weights("best", {name: 2 * tensor for name, tensor in other.read_weights("best").items()})
    other.config_file.write_text(other.config_file.read_text().replace('"cow"', '"other"'))
    return other


def write_flat(run: Path, to: Path) -> Path:
    """Write a model into a hub folder as earlier versions did: all files next to each other."""
    to.mkdir(parents=True)
    for name in PUSHED:
        (to / name).write_bytes((run / name).read_bytes() if name != "README.md" else b"card")
    return to


def list_files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name != ".lock")


@pytest.mark.parametrize("text", ["owner/name", "hf:owner/name", "hf:a/b", "hf:an-owner_1/v1.2_x"])
def test_names(text: str) -> None:
    assert parse_name(text).name == text.removeprefix("hf:")
    validate_repo_id(text.removeprefix("hf:"))


def test_a_name_may_have_a_revision() -> None:
    model = parse_name("hf:owner/name@refs/pr/1")
    assert (model.name, model.revision, str(model)) == ("owner/name", "refs/pr/1", "hf:owner/name@refs/pr/1")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "hf:",
            "hf:name",
            "hf:a/b/c",
            "hf:/name",
            "hf:owner/",
            "hf:../name",
            "hf:owner/..",
            "hf:./name",
            "hf:owner/.",
        ),
        *("hf:owner/../..", "hf:/etc/passwd", "hf:owner/a b", "hf:owner/a\\b", "hf:owner/name@", "hf:owner/a--b"),
        *("hf:owner/a..b", "hf:owner/-a", "hf:owner/x.git", "hf:owner/ä", "hf:owner/a\n", f"hf:owner/{'x' * 96}"),
    ],
)
def test_malformed_names_are_errors(text: str, folder: Path) -> None:
    with pytest.raises(DomainwiseError, match="is not the name of a model; expected hf:owner/name"):
        find_run(text, hub=folder)
    with pytest.raises(DomainwiseError, match="is not the name of a model"):
        push_run(RUN, text, "card", hub=folder)
    assert list(folder.iterdir()) == []


def test_a_path_is_the_run_itself(folder: Path) -> None:
    assert find_run(RUN, hub=folder) == RUN
    assert find_run(str(RUN)) == RUN


class TestFolder:
    def test_a_pushed_model_is_loaded(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert push_model(RUN, "team/cows", hub=folder) == str(folder / "team" / "cows")
        assert list_files(find_run("hf:team/cows", hub=folder)) == PUSHED
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))
        assert_same_model(load_model(folder / "team" / "cows"), load_model(RUN))
        monkeypatch.setenv("DOMAINWISE_HUB", str(folder))
        assert_same_model(load_model("hf:team/cows"), load_model(RUN))
        assert push_model(RUN, "team/others") == str(folder / "team" / "others")

    def test_a_push_replaces_the_model_and_leaves_no_older_weights(self, folder: Path, tmp_path: Path) -> None:
        push_model(RUN, "team/cows", hub=folder, which="all")
        assert "last.safetensors" in list_files(find_run("hf:team/cows", hub=folder))
        other = copy_other(tmp_path / "other")
        push_model(other.path, "team/cows", hub=folder)
        assert list_files(find_run("hf:team/cows", hub=folder)) == PUSHED
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(other.path))
        with pytest.raises(DomainwiseError, match=r"hf:team/cows has no last\.safetensors"):
            load_model("hf:team/cows", "last", hub=folder)
        # The former version is still there, but no result.
        assert [each.path for each in discover([folder]).runs] == [find_run("hf:team/cows", hub=folder)]

    def test_the_last_model_alone(self, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder, which="last")
        assert_same_model(load_model("hf:team/cows", "last", hub=folder), load_model(RUN, "last"))
        with pytest.raises(DomainwiseError, match=r"has no best\.safetensors"):
            load_model("hf:team/cows", hub=folder)

    def test_a_reader_sees_one_model_while_another_is_pushed(self, folder: Path, tmp_path: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        reader = find_run("hf:team/cows", hub=folder)
        other = copy_other(tmp_path / "other")
        for run in (other.path, RUN, other.path):
            push_model(run, "team/cows", hub=folder)
        assert_same_model(load_model(reader), load_model(RUN))
        assert RunFolder(reader).read_config() == RunFolder(RUN).read_config()
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(other.path))

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
    def test_a_push_that_ends_early_leaves_the_old_model(
        self, error: BaseException, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        push_model(RUN, "team/cows", hub=folder)
        before = list_files(folder / "team" / "cows")
        other = copy_other(tmp_path / "other")
        replace = os.replace
        for file in (*PUSHED, "current-version"):

            def fail(source: str, target: Path, last: str = file) -> None:
                if target.name == last:
                    raise error
                replace(source, target)

            monkeypatch.setattr(os, "replace", fail)
            with pytest.raises(type(error)):
                push_model(other.path, "team/cows", hub=folder)
            monkeypatch.undo()
            assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))
            assert list_files(folder / "team" / "cows") == before
        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(type(error)):
            push_model(RUN, "team/new", hub=folder)
        monkeypatch.undo()
        with pytest.raises(DomainwiseError, match=r"hf:team/new in the hub folder .* is incomplete; push it again"):
            load_model("hf:team/new", hub=folder)
        push_model(RUN, "team/new", hub=folder)
        assert_same_model(load_model("hf:team/new", hub=folder), load_model(RUN))

    def test_a_push_that_was_killed_is_cleaned_up(self, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        left = folder / "team" / "cows" / f"version-{'0' * 16}"
        left.mkdir()
        (left / "best.safetensors").write_bytes(b"half")
        push_model(RUN, "team/cows", hub=folder)
        assert not left.exists()

    def test_old_versions_stay_for_an_hour(self, folder: Path) -> None:
        ages = {}
        for age in (7200, 5000, 3700, 1800, 0):
            push_model(RUN, "team/cows", hub=folder)
            ages[find_run("hf:team/cows", hub=folder)] = age
        versions = list(ages)
        assert all(each.is_dir() for each in versions)
        for version, age in ages.items():
            os.utime(version / "done", (time.time() - age,) * 2)
        push_model(RUN, "team/cows", hub=folder)
        # The third was the current one an hour ago.
        assert [each.is_dir() for each in versions] == [False, False, True, True, True]

    def test_models_of_earlier_versions(self, folder: Path, tmp_path: Path) -> None:
        flat = write_flat(RUN, folder / "team" / "cows")
        assert find_run("hf:team/cows", hub=folder) == flat
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))
        other = copy_other(tmp_path / "other")
        push_model(other.path, "team/cows", hub=folder)
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(other.path))
        # For a reader that has found it before the push.
        assert set(PUSHED) < set(list_files(flat))
        for hours, file in ((3, flat / "done"), (2, find_run("hf:team/cows", hub=folder) / "done")):
            os.utime(file, (time.time() - 3600 * hours,) * 2)
        push_model(other.path, "team/cows", hub=folder)
        assert not set(PUSHED) & set(list_files(flat))

    @pytest.mark.parametrize("name", ["done", "records.jsonl", "config.json", "best.safetensors"])
    def test_what_a_link_leads_to_is_not_pushed(self, name: str, folder: Path, tmp_path: Path) -> None:
        run = copy_run(tmp_path / "run")
        (run.path / name).rename(tmp_path / "private")
        (run.path / name).symlink_to(tmp_path / "private")
        with pytest.raises(DomainwiseError, match=f"{name} is a link; expected the file itself"):
            push_run(run.path, "team/cows", "card", hub=folder)
        assert list(folder.iterdir()) == []

    def test_a_link_may_not_pose_as_the_cache_of_the_client(self, folder: Path, tmp_path: Path) -> None:
        run = copy_run(tmp_path / "cache" / "snapshots" / "commit")
        (tmp_path / "private").mkdir()
        run.records_file.rename(tmp_path / "private" / "records")
        (tmp_path / "cache" / "blobs").symlink_to(tmp_path / "private")
        run.records_file.symlink_to("../../blobs/records")
        with pytest.raises(DomainwiseError, match=r"records\.jsonl is a link"):
            push_run(run.path, "team/cows", "card", hub=folder)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("done", b"a password", "done is damaged: expected the last step"),
            ("done", b"99", "does not reach the last step of the run"),
            ("records.jsonl", b"", "does not reach the last step of the run"),
            ("records.jsonl", b"a password\n\n", r"records\.jsonl is damaged at line 1"),
            ("records.jsonl", (RUN / "records.jsonl").read_bytes()[:-9], r"records\.jsonl is truncated"),
            ("config.json", b"{}", r"config\.json is damaged"),
        ],
    )
    def test_damaged_files_are_not_pushed(
        self, name: str, content: bytes, message: str, folder: Path, tmp_path: Path
    ) -> None:
        push_model(RUN, "team/cows", hub=folder)
        run = copy_run(tmp_path / "run")
        (run.path / name).write_bytes(content)
        with pytest.raises(DomainwiseError, match=message):
            push_run(run.path, "team/cows", "card", hub=folder)
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))

    def test_damaged_weights_are_not_pushed(self, folder: Path, tmp_path: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        run = copy_other(tmp_path / "run")
        content = bytearray(run.weights_file("best").read_bytes())
        content[-1] ^= 1
        run.weights_file("best").write_bytes(content)
        with pytest.raises(DomainwiseError, match=r"best\.safetensors is damaged: its weights do not have the digest"):
            push_model(run.path, "team/cows", hub=folder)
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))

    def test_a_model_can_be_pushed_under_another_name(self, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        push_model("hf:team/cows", "team/copy", hub=folder)
        assert list_files(find_run("hf:team/copy", hub=folder)) == PUSHED
        push_model("hf:team/cows", "team/cows", hub=folder, card="another card")
        assert (find_run("hf:team/cows", hub=folder) / "README.md").read_text() == "another card"
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))

    @pytest.mark.parametrize("files", [["README.md"], ["notes.txt"], ["README.md", "config.json", "checkpoint.pt"]])
    def test_a_folder_with_other_files_is_left_alone(self, files: list[str], folder: Path) -> None:
        place = folder / "team" / "cows"
        place.mkdir(parents=True)
        for name in files:
            (place / name).write_text("mine")
        with pytest.raises(DomainwiseError, match=f"{place} contains files that are not a model"):
            push_model(RUN, "team/cows", hub=folder)
        assert {each.name: each.read_text() for each in place.iterdir()} == dict.fromkeys(files, "mine")

    def test_a_run_is_no_place_for_a_model(self, folder: Path) -> None:
        run = copy_run(folder / "team" / "cows")
        before = list_files(run.path)
        with pytest.raises(DomainwiseError, match="contains files that are not a model"):
            push_model(RUN, "team/cows", hub=folder)
        assert list_files(run.path) == before

    @pytest.mark.parametrize("content", ["../../outside", "", "version-0/../..", "x" * 1000])
    def test_a_damaged_pointer_is_named(self, content: str, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        (folder / "team" / "cows" / "current-version").write_text(content)
        with pytest.raises(DomainwiseError, match=r"current-version is damaged.*; push the model again"):
            load_model("hf:team/cows", hub=folder)
        push_model(RUN, "team/cows", hub=folder)
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))

    def test_links_out_of_the_folder_are_not_followed(self, folder: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        shutil.copytree(RUN, outside / "cows")
        (folder / "team").symlink_to(outside)
        with pytest.raises(DomainwiseError, match="must be inside the hub folder"):
            load_model("hf:team/cows", hub=folder)
        with pytest.raises(DomainwiseError, match="must be inside the hub folder"):
            push_model(RUN, "team/new", hub=folder)
        assert list_files(outside) == ["cows"]
        push_model(RUN, "others/cows", hub=folder)
        version = find_run("hf:others/cows", hub=folder)
        version.rename(outside / "version")
        version.symlink_to(outside / "version")
        with pytest.raises(DomainwiseError, match="must be inside the hub folder"):
            load_model("hf:others/cows", hub=folder)

    def test_errors(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DomainwiseError, match="hf:team/cows not found in the hub folder"):
            load_model("hf:team/cows", hub=folder)
        push_model(RUN, "team/cows", hub=folder)
        with pytest.raises(DomainwiseError, match="has no revisions; leave out @v1"):
            load_model("hf:team/cows@v1", hub=folder)
        with pytest.raises(DomainwiseError, match="a push goes to the main revision"):
            push_run(RUN, "team/cows@v1", "card", hub=folder)
        with pytest.raises(DomainwiseError, match="unknown model of a run 'newest'"):
            push_model(RUN, "team/cows", which="newest", hub=folder)  # type: ignore[arg-type]
        unfinished = copy_run(tmp_path / "unfinished")
        unfinished.done_file.unlink()
        with pytest.raises(DomainwiseError, match="is not finished; resume it first"):
            push_model(unfinished.path, "team/cows", hub=folder)
        with pytest.raises(DomainwiseError, match=r"hub folder .*nowhere not found$"):
            load_model("hf:team/cows", hub=tmp_path / "nowhere")
        monkeypatch.setenv("DOMAINWISE_HUB", str(tmp_path / "nowhere"))
        with pytest.raises(DomainwiseError, match=r"not found \(set by DOMAINWISE_HUB\)"):
            load_model("hf:team/cows")

    def test_nothing_that_a_config_names_is_imported(self, folder: Path, tmp_path: Path) -> None:
        run = copy_run(tmp_path / "run")
        content = json.loads(run.config_file.read_text())
        content["config"]["network"] = "antigravity:geohash"
        run.config_file.write_text(json.dumps(content))
        push_run(run.path, "team/cows", "card", hub=folder)
        with pytest.raises(DomainwiseError, match="used a custom network, antigravity:geohash; pass it with --network"):
            load_model("hf:team/cows", hub=folder)
        assert "antigravity" not in sys.modules

    def test_the_client_is_not_needed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        push_model(RUN, "team/cows", hub=folder)
        load_model("hf:team/cows", hub=folder)
        with pytest.raises(
            DomainwiseError, match=r"hf:team/cows needs huggingface_hub.*pip install 'huggingface-hub>="
        ):
            load_model("hf:team/cows")
        with pytest.raises(DomainwiseError, match=r"push to team/cows needs huggingface_hub"):
            push_model(RUN, "team/cows")


# The client passes a file to its HTTP library in a way that the latter deprecates.
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
class TestServer:
    def test_a_pushed_model_is_loaded(self, hub: HubServer) -> None:
        assert push_model(RUN, "me/cows", license="mit") == f"{hub.url}/me/cows"
        files = hub.files("me/cows")
        assert sorted(files) == [".gitattributes", *PUSHED]
        assert files["best.safetensors"] == (RUN / "best.safetensors").read_bytes()
        assert files["README.md"].startswith(b'---\nlicense: "mit"\n')
        # The weights went to large-file storage, all in one commit.
        assert hub.commits["me/cows"][-1][1]["best.safetensors"][1]
        assert len(hub.commits["me/cows"]) == 2
        assert_same_model(load_model("hf:me/cows"), load_model(RUN))
        downloaded = [path for method, path in hub.requests if method == "GET" and "/resolve/" in path]
        assert not any(path.endswith("README.md") for path in downloaded)

    def test_a_push_is_a_new_commit_that_replaces_the_model(self, hub: HubServer, tmp_path: Path) -> None:
        push_model(RUN, "me/cows", which="all")
        first = hub.commits["me/cows"][-1][0]
        other = copy_run(tmp_path / "other")
        other.write_weights("best", {name: 2 * each for name, each in other.read_weights("best").items()})
        push_model(other.path, "me/cows")
        assert sorted(hub.files("me/cows")) == [".gitattributes", *PUSHED]
        assert_same_model(load_model("hf:me/cows"), load_model(other.path))
        assert_same_model(load_model(f"hf:me/cows@{first}"), load_model(RUN))
        assert_same_model(load_model(f"hf:me/cows@{first}", "last"), load_model(RUN, "last"))
        with pytest.raises(DomainwiseError, match=r"hf:me/cows has no last\.safetensors"):
            load_model("hf:me/cows", "last")

    def test_the_cache_is_used_without_a_network(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        push_model(RUN, "me/cows")
        load_model("hf:me/cows")
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        assert_same_model(load_model("hf:me/cows"), load_model(RUN))
        with pytest.raises(
            DomainwiseError, match=r"hf:me/other is not in the cache and could not be downloaded from http"
        ):
            load_model("hf:me/other")
        with pytest.raises(DomainwiseError, match=r"could not reach the Hub at http://127\.0\.0\.1:1"):
            push_model(RUN, "me/cows")

    def test_nothing_is_pushed_before_all_files_are_checked(self, hub: HubServer, tmp_path: Path) -> None:
        run = copy_run(tmp_path / "run")
        run.records_file.rename(tmp_path / "private")
        run.records_file.symlink_to(tmp_path / "private")
        with pytest.raises(DomainwiseError, match=r"records\.jsonl is a link"):
            push_model(run.path, "me/cows")
        assert hub.commits == {}

    def test_a_downloaded_model_can_be_pushed_under_another_name(self, hub: HubServer) -> None:
        push_model(RUN, "me/cows")
        push_model("hf:me/cows", "me/copy")
        assert hub.files("me/copy")["best.safetensors"] == (RUN / "best.safetensors").read_bytes()

    def test_private_models(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        push_model(RUN, "me/secret", private=True)
        assert hub.private == {"me/secret"}
        push_model(RUN, "me/secret", private=True)
        push_model(RUN, "me/public")
        commits = len(hub.commits["me/public"])
        with pytest.raises(DomainwiseError, match="me/public exists and is public"):
            push_model(RUN, "me/public", private=True)
        assert len(hub.commits["me/public"]) == commits
        monkeypatch.delenv("HF_TOKEN")
        load_model("hf:me/public")
        with pytest.raises(
            DomainwiseError, match=r"hf:me/secret not found on the Hub; check the name or, if it is private"
        ):
            load_model("hf:me/secret")

    def test_errors(self, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DomainwiseError, match="hf:me/cows not found on the Hub"):
            load_model("hf:me/cows")
        with pytest.raises(DomainwiseError, match=r"hf:others/cows: the Hub answered 403 \(You don't have the rights"):
            push_model(RUN, "others/cows")
        with pytest.raises(DomainwiseError, match=r"me/cows: .*metadata"):
            push_model(RUN, "me/cows", card="---\n: [\n---\n")
        push_model(RUN, "me/cows")
        with pytest.raises(DomainwiseError, match="hf:me/cows@v9 not found on the Hub: no such revision"):
            load_model("hf:me/cows@v9")
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(DomainwiseError, match="the Hub answered 401"):
            push_model(RUN, "me/cows")
        monkeypatch.delenv("HF_TOKEN")
        with pytest.raises(
            DomainwiseError, match="no Hugging Face token; log in with `hf auth login`, or set HF_TOKEN"
        ):
            push_model(RUN, "me/cows")

    def test_models_of_others_are_named(self, hub: HubServer) -> None:
        tree = {"config.json": (hub.keep(b'{"model_type": "bert"}'), False)}
        hub.commit("me/bert", tree)
        with pytest.raises(DomainwiseError, match="hf:me/bert is not a domainwise model"):
            load_model("hf:me/bert")
        with pytest.raises(DomainwiseError, match="me/bert is another model, not one of domainwise"):
            push_model(RUN, "me/bert")
        assert len(hub.commits["me/bert"]) == 1


def test_the_command_line_with_the_environment_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    with serve_hub(tmp_path / "blobs") as hub:
        home = str(tmp_path / "home")
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": home}

        image = Path(__file__).parents[3] / "docs" / "study.png"
        # Both in one process, because each takes seconds to start.
        code = "from runpy import run_module\nimport sys\n" + "".join(
            f"sys.argv = ['domainwise', *{[*map(str, words)]}]\n"
            "try:\n    run_module('domainwise', run_name='__main__')\n"
            "except SystemExit as end:\n    assert not end.code\n"
            for words in (("push", RUN, "me/cows"), ("predict", "hf:me/cows", image, "--json", "--device", "cpu"))
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
        assert result.returncode == 0, result.stderr
        pushed = f"pushing me/cows\npushed to {hub.url}/me/cows; load it with load_model('hf:me/cows')\n"
        assert result.stderr.startswith(pushed)
        (row,) = json.loads(result.stdout)
        (expected,) = predict_images(RUN, [image], device="cpu")
        assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
