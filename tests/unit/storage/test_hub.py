"""Models on the Hub: names, a folder in its place, and the Hub's own client against a server that stands in for it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import validate_repo_id

from domainwise import DomainwiseError, load_model, push_model
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
        assert list_files(folder / "team" / "cows") == PUSHED
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))
        monkeypatch.setenv("DOMAINWISE_HUB", str(folder))
        assert_same_model(load_model("hf:team/cows"), load_model(RUN))
        assert push_model(RUN, "team/others") == str(folder / "team" / "others")

    def test_a_push_replaces_the_model_and_leaves_no_older_weights(self, folder: Path, tmp_path: Path) -> None:
        push_model(RUN, "team/cows", hub=folder, which="all")
        assert "last.safetensors" in list_files(folder / "team" / "cows")
        other = copy_run(tmp_path / "other")
        state = {name: 2 * tensor for name, tensor in other.read_weights("best").items()}
        other.write_weights("best", state)
        push_model(other.path, "team/cows", hub=folder)
        assert list_files(folder / "team" / "cows") == PUSHED
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(other.path))
        with pytest.raises(DomainwiseError, match=r"hf:team/cows has no last\.safetensors"):
            load_model("hf:team/cows", "last", hub=folder)

    def test_the_last_model_alone(self, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder, which="last")
        assert_same_model(load_model("hf:team/cows", "last", hub=folder), load_model(RUN, "last"))
        with pytest.raises(DomainwiseError, match=r"has no best\.safetensors"):
            load_model("hf:team/cows", hub=folder)

    def test_a_push_that_was_cut_off_is_not_loaded(self, folder: Path, tmp_path: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        broken = copy_run(tmp_path / "broken")
        broken.records_file.unlink()
        with pytest.raises(OSError, match=r"records\.jsonl"):
            push_run(broken.path, "team/cows", "card", hub=folder)
        with pytest.raises(DomainwiseError, match="is incomplete; push it again"):
            load_model("hf:team/cows", hub=folder)
        push_model(RUN, "team/cows", hub=folder)
        assert list_files(folder / "team" / "cows") == PUSHED
        assert_same_model(load_model("hf:team/cows", hub=folder), load_model(RUN))

    def test_a_model_can_be_pushed_under_another_name(self, folder: Path) -> None:
        push_model(RUN, "team/cows", hub=folder)
        push_model("hf:team/cows", "team/copy", hub=folder)
        assert list_files(folder / "team" / "copy") == PUSHED
        with pytest.raises(DomainwiseError, match="is the run itself"):
            push_model("hf:team/cows", "team/cows", hub=folder)
        assert list_files(folder / "team" / "cows") == PUSHED

    def test_links_out_of_the_folder_are_not_followed(self, folder: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        shutil.copytree(RUN, outside / "cows")
        (folder / "team").symlink_to(outside)
        with pytest.raises(DomainwiseError, match="must be inside the hub folder"):
            load_model("hf:team/cows", hub=folder)
        with pytest.raises(DomainwiseError, match="must be inside the hub folder"):
            push_model(RUN, "team/new", hub=folder)
        assert list_files(outside) == ["cows"]

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
            DomainwiseError, match=r"hf:team/cows needs huggingface_hub.*pip install 'domainwise\[hub\]'"
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


def test_the_command_line_with_the_environment_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    with serve_hub(tmp_path / "blobs") as hub:
        home = str(tmp_path / "home")
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": home}

        def call(*args: object) -> str:
            command = [sys.executable, "-m", "domainwise", *map(str, args)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
            assert result.returncode == 0, result.stderr
            return result.stdout + result.stderr

        pushed = call("push", RUN, "me/cows")
        assert pushed == f"pushing me/cows\npushed to {hub.url}/me/cows; load it with load_model('hf:me/cows')\n"
        image = Path(__file__).parents[3] / "docs" / "study.png"
        (row,) = json.loads(call("predict", "hf:me/cows", image, "--json", "--device", "cpu"))
        (expected,) = predict_images(RUN, [image], device="cpu")
        assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
