"""Fetching from GroupLens, against a server on this machine."""

import functools
import hashlib
import http.server
import io
import socket
import sys
import threading
import zipfile

import pytest

import ivvi.simulators.ratings
from ivvi import InputError
from ivvi.errors import FileError

module = sys.modules["ivvi.simulators.ratings.download"]


def zip_of(name, text):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


ZIP = zip_of("ml-1m/ratings.dat", "1::1193::5::978300760\n")
MD5 = hashlib.md5(ZIP).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def log_message(self, *args):
        self.requests.append(self.path)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that a local server offers in place of GroupLens' site."""
    folder = tmp_path / "site"
    folder.mkdir()
    Handler.requests.clear()
    server = http.server.HTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "SITE", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(module, "CHECKSUMS", {**module.CHECKSUMS, "ml-1m": MD5})
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "new" / "data"


def test_site_and_checksums_are_those_of_grouplens():
    assert module.SITE == "https://files.grouplens.org/datasets/movielens"
    assert module.CHECKSUMS == {
        "ml-100k": "0e33842e24a9c977be4e0107933c0723",
        "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
        "ml-latest-small": None,
    }


def test_a_data_set_is_fetched_and_read(site, folder):
    (site / "ml-1m.zip").write_bytes(ZIP)
    path = ivvi.simulators.ratings.download("ml-1m", folder)
    assert path == folder / "ml-1m.zip"
    assert path.read_bytes() == ZIP
    assert list(folder.iterdir()) == [path]
    assert ivvi.simulators.ratings.read_ratings(path).label == "MovieLens ml-1m ratings.dat"


def test_intact_zip_is_not_fetched_again(site, folder):
    folder.mkdir(parents=True)
    (folder / "ml-1m.zip").write_bytes(ZIP)
    assert ivvi.simulators.ratings.download("ml-1m", str(folder)) == folder / "ml-1m.zip"
    assert Handler.requests == []


def test_damaged_zip_is_replaced(site, folder):
    (site / "ml-1m.zip").write_bytes(ZIP)
    folder.mkdir(parents=True)
    (folder / "ml-1m.zip").write_bytes(ZIP[:10])
    assert ivvi.simulators.ratings.download("ml-1m", folder).read_bytes() == ZIP


def test_wrong_checksum_leaves_nothing(site, folder):
    (site / "ml-1m.zip").write_bytes(ZIP[:-1])
    with pytest.raises(FileError, match=rf"where GroupLens publishes {MD5}, and was discarded"):
        ivvi.simulators.ratings.download("ml-1m", folder)
    assert list(folder.iterdir()) == []


def test_wrong_checksum_leaves_the_old_file(site, folder):
    (site / "ml-1m.zip").write_bytes(b"other")
    folder.mkdir(parents=True)
    (folder / "ml-1m.zip").write_bytes(b"old")
    with pytest.raises(FileError, match="discarded"):
        ivvi.simulators.ratings.download("ml-1m", folder)
    assert [path.read_bytes() for path in folder.iterdir()] == [b"old"]


@pytest.mark.parametrize("text", ["MD5 (ml-latest-small.zip) = {}\n", "{}  ml-latest-small.zip\n"])
def test_changing_data_set_is_checked_against_the_published_md5(site, folder, text):
    (site / "ml-latest-small.zip").write_bytes(ZIP)
    (site / "ml-latest-small.zip.md5").write_text(text.format(MD5))
    assert ivvi.simulators.ratings.download("ml-latest-small", folder).read_bytes() == ZIP
    (site / "ml-latest-small.zip.md5").write_text(text.format("0" * 32))
    with pytest.raises(FileError, match=f"has MD5 {MD5}, where GroupLens publishes 0000"):
        ivvi.simulators.ratings.download("ml-latest-small", folder)


def test_a_published_md5_that_is_none_is_refused(site, folder):
    (site / "ml-latest-small.zip.md5").write_text("<html>moved</html>")
    with pytest.raises(FileError, match=r"zip\.md5 holds no MD5 checksum; download ml-latest"):
        ivvi.simulators.ratings.download("ml-latest-small", folder)


@pytest.mark.parametrize("name", ["ml-1m", "ml-latest-small"])
def test_what_is_not_on_the_site_is_to_be_downloaded_by_hand(site, folder, name):
    with pytest.raises(FileError, match=rf"HTTP Error 404: .*\); download {name}\.zip by hand"):
        ivvi.simulators.ratings.download(name, folder)
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["ml-1m", "ml-latest-small"])
def test_a_download_without_network_is_refused(monkeypatch, folder, name):
    def refuse(*args, **kwargs):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(FileError) as caught:
        ivvi.simulators.ratings.download(name, folder)
    message = str(caught.value)
    assert message.startswith(f"https://files.grouplens.org/datasets/movielens/{name}.zip")
    assert "Temporary failure in name resolution" in message
    assert f"download {name}.zip by hand from https://grouplens.org/datasets/movielens/" in message
    assert message.endswith("or leave the path out to use the synthetic ratings")
    assert not folder.exists() or list(folder.iterdir()) == []


def test_connection_that_breaks_leaves_nothing(monkeypatch, folder):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise TimeoutError("timed out")
            return super().read(5)

    monkeypatch.setattr(module.urllib.request, "urlopen", lambda url, timeout: Broken(ZIP))
    with pytest.raises(FileError, match=r"ml-1m\.zip could not be fetched \(timed out\)"):
        ivvi.simulators.ratings.download("ml-1m", folder)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(site, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileError, match=r"taken cannot take ml-1m\.zip"):
        ivvi.simulators.ratings.download("ml-1m", tmp_path / "taken")


def test_an_unknown_data_set_is_refused(folder):
    with pytest.raises(InputError, match=r"no data set 'ml-1M' to download.*mean 'ml-1m'\?"):
        ivvi.simulators.ratings.download("ml-1M", folder)
