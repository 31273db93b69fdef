"""Datasets: where MNIST is found, how it is downloaded (from a loopback server), what is refused; label noise."""

import gzip
import hashlib
import os
import re
import struct
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbi import datasets
from proxbi.datasets import DataError, DownloadError, handwritten, idx
from proxbi.datasets.fetch import RemoteFile, fetch

MIRRORS = handwritten.MIRRORS  # the true ones: no test uses them
NAMES = [file.name for file in handwritten.FILES]
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def encoded(array):
    """`array` as IDX."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_mnist():
    """The four arrays of a dataset like MNIST, with 20 training and 10 test images."""
    draw = np.random.default_rng(0)
    arrays = []
    for rows in (20, 10):
        arrays += [draw.integers(0, 256, (rows, 28, 28), np.uint8), draw.integers(0, 10, rows, np.uint8)]
    return arrays


ARRAYS = small_mnist()
GZIPPED = {name: gzip.compress(encoded(array), mtime=0) for name, array in zip(NAMES, ARRAYS, strict=True)}


def described(name, content):
    return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest())


def assert_is_small_mnist(found):
    for part, images, labels in [(found.train, *ARRAYS[:2]), (found.test, *ARRAYS[2:])]:
        assert part.features.dtype == np.uint8
        assert part.labels.dtype == np.int32
        assert np.array_equal(part.features, images.reshape(-1, 784))
        assert np.array_equal(part.labels, labels)


def write(folder, contents=GZIPPED):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No test sees the user's files, a proxy, or the network."""
    monkeypatch.delenv("PROXBI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(handwritten, "MIRRORS", ())


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "proxbi" / "mnist"


# Where the files are looked for


@pytest.mark.parametrize("separator", "-.")
@pytest.mark.parametrize("gzipped", [True, False])
def test_both_spellings_plain_and_gzipped(tmp_path, separator, gzipped):
    for name, content in GZIPPED.items():
        spelling = name.replace("-idx", f"{separator}idx")
        path = tmp_path / (spelling if gzipped else spelling.removesuffix(".gz"))
        path.write_bytes(content if gzipped else gzip.decompress(content))
    assert_is_small_mnist(datasets.mnist(tmp_path))
    assert_is_small_mnist(datasets.mnist(str(tmp_path)))


def test_a_file_unpacked_under_its_gz_name_is_read(tmp_path):
    assert_is_small_mnist(datasets.mnist(write(tmp_path, {n: gzip.decompress(c) for n, c in GZIPPED.items()})))


def test_the_folder_goes_before_the_variable_and_the_variable_before_the_cache(tmp_path, monkeypatch, cache):
    broken = dict.fromkeys(NAMES, b"broken")
    write(cache, broken)
    with pytest.raises(DataError, match="cache"):
        datasets.mnist()
    monkeypatch.setenv("PROXBI_DATA", str(write(tmp_path / "variable")))
    assert_is_small_mnist(datasets.mnist())
    with pytest.raises(DataError, match="argument"):
        datasets.mnist(write(tmp_path / "argument", broken))


def test_an_empty_variable_is_none(monkeypatch, cache):
    monkeypatch.setenv("PROXBI_DATA", "")
    write(cache)
    assert_is_small_mnist(datasets.mnist())


def test_a_folder_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path / "numbers")
    assert_is_small_mnist(datasets.mnist("~/numbers"))


@pytest.mark.parametrize("given_by", ["folder", "PROXBI_DATA"])
@pytest.mark.parametrize("missing", NAMES)
def test_a_named_folder_that_lacks_a_file_is_refused_and_nothing_is_downloaded(
    tmp_path, monkeypatch, server, cache, given_by, missing
):
    write(tmp_path / "some", {name: content for name, content in GZIPPED.items() if name != missing})
    if given_by == "PROXBI_DATA":
        monkeypatch.setenv("PROXBI_DATA", str(tmp_path / "some"))
    with pytest.raises(FileNotFoundError, match=f"some .given by {given_by}. has no .* or {missing}"):
        datasets.mnist(tmp_path / "some" if given_by == "folder" else None)
    assert server.asked == []
    assert not cache.exists()


def test_a_named_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.* is not a directory"):
        datasets.mnist(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/proxbi/mnist"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/proxbi/mnist"),
        ("darwin", {}, "home/Library/Caches/proxbi/mnist"),
        ("win32", {}, "home/AppData/Local/proxbi/mnist"),
        ("win32", {"LOCALAPPDATA": "{}/local"}, "local/proxbi/mnist"),
        ("linux", {"XDG_CACHE_HOME": "{}/xdg"}, "xdg/proxbi/mnist"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_it(tmp_path, monkeypatch, platform, variables, expected):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(sys, "platform", platform)
    assert handwritten.cache_folder() == tmp_path / expected


def test_without_a_home_the_error_says_what_to_set(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(FileNotFoundError, match="PROXBI_DATA"):
        datasets.mnist()


# The download


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`, and closes after `server.cut` bytes."""

    def do_GET(self):
        server, name = self.server, self.path.removeprefix("/")
        server.asked.append(name)
        if name not in server.files:
            self.send_error(404)
            return
        content = server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    """A mirror on this machine, and `handwritten` set up to download the small dataset from it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that closing waits for them
    server.files, server.cut, server.asked = dict(GZIPPED), None, []
    server.url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setattr(handwritten, "MIRRORS", (server.url,))
    monkeypatch.setattr(handwritten, "FILES", tuple(described(*item) for item in GZIPPED.items()))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_missing_is_downloaded_once_into_the_cache(server, cache, capsys):
    assert_is_small_mnist(datasets.mnist())
    assert server.asked == NAMES
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == GZIPPED
    server.asked.clear()
    assert_is_small_mnist(datasets.mnist())
    assert server.asked == []
    assert capsys.readouterr() == ("", "")  # no terminal, no bar


def test_files_put_into_the_cache_by_hand_are_not_downloaded(server, cache):
    write(cache, {"train-images.idx3-ubyte": encoded(ARRAYS[0]), TEST_LABELS: GZIPPED[TEST_LABELS]})
    assert_is_small_mnist(datasets.mnist())
    assert server.asked == [TRAIN_LABELS, TEST_IMAGES]


def test_a_wrong_digest_is_refused_and_the_file_removed(server, cache):
    content = bytearray(GZIPPED[TRAIN_LABELS])
    content[9] ^= 1  # the operating system in gzip's header: what it unpacks to is the same
    server.files[TRAIN_LABELS] = bytes(content)
    with pytest.raises(DownloadError, match=f"{TRAIN_LABELS}: its SHA-256 is not"):
        datasets.mnist()
    assert [path.name for path in cache.iterdir()] == [TRAIN_IMAGES]


def test_a_download_that_breaks_off_leaves_nothing_and_begins_anew(server, cache):
    server.cut = 1000
    with pytest.raises(DownloadError, match=f"{TRAIN_IMAGES}: "):
        datasets.mnist()
    assert list(cache.iterdir()) == []
    server.cut = None
    assert_is_small_mnist(datasets.mnist())


def test_the_next_mirror_is_asked_where_one_failed(server, cache, monkeypatch):
    server.files = {f"a/{TRAIN_IMAGES}": GZIPPED[TRAIN_IMAGES][:1000]} | {f"b/{n}": c for n, c in GZIPPED.items()}
    monkeypatch.setattr(handwritten, "MIRRORS", (f"{server.url}a/", f"{server.url}b/"))
    assert_is_small_mnist(datasets.mnist())
    assert server.asked[:2] == [f"a/{TRAIN_IMAGES}", f"b/{TRAIN_IMAGES}"]


def test_without_pooch_the_error_says_what_to_install(server, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DownloadError, match=r"pip install 'proxbi\[data\]'") as caught:
        datasets.mnist()
    assert_is_one_helpful_sentence(caught.value, cache)


def assert_is_one_helpful_sentence(error, cache):
    message = str(error)
    assert message.startswith("MNIST could not be downloaded (")
    assert message.endswith("PROXBI_DATA.")
    assert "\n" not in message
    assert ". " not in message
    assert str(cache) in message
    assert all(name in message for name in NAMES)


def test_a_file_that_is_not_there_is_one_sentence_that_says_what_to_do(server, cache):
    server.files.clear()
    with pytest.raises(DownloadError, match="404 Not Found") as caught:
        datasets.mnist()
    assert_is_one_helpful_sentence(caught.value, cache)


def test_a_refused_connection_is_one_sentence_that_says_what_to_do(cache, monkeypatch):
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    closed.server_close()
    monkeypatch.setattr(handwritten, "MIRRORS", (f"http://127.0.0.1:{closed.server_port}/",))
    with pytest.raises(DownloadError) as caught:
        datasets.mnist()
    assert "HTTPConnectionPool" not in str(caught.value)
    assert_is_one_helpful_sentence(caught.value, cache)


def test_a_cache_that_cannot_be_made_is_one_sentence_that_says_what_to_do(server, cache, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DownloadError) as caught:
        datasets.mnist()
    assert_is_one_helpful_sentence(caught.value, cache)
    assert server.asked == []


def test_a_file_that_another_process_brought_meanwhile_is_taken(server, cache):
    write(cache, {TRAIN_LABELS: GZIPPED[TRAIN_LABELS]})
    assert fetch(handwritten.FILES[1], (server.url,), cache) == cache / TRAIN_LABELS
    assert server.asked == []


def test_several_may_download_at_once(server, cache):
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: datasets.mnist(), range(4)):
            assert_is_small_mnist(found)
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


class Terminal(StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_progress_bar(server, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    datasets.mnist()
    assert all(name in sys.stderr.getvalue() for name in NAMES)


def test_without_rich_there_is_no_bar(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert_is_small_mnist(datasets.mnist())
    assert sys.stderr.getvalue() == ""


def test_the_mirrors_are_https_and_the_files_have_their_digests():
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in MIRRORS)
    assert sum(file.size for file in handwritten.FILES) == 11_594_722
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in handwritten.FILES)


# Damaged files


IMAGES, LABELS = encoded(ARRAYS[0]), encoded(ARRAYS[1])


def refused(folder, name, content):
    """The message of the error for the dataset with this content in one file; it names the file."""
    with pytest.raises(DataError) as caught:
        datasets.mnist(write(folder, GZIPPED | {name: content}))
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (TRAIN_IMAGES, b"", "begins with nothing, not 00000803"),
        (TRAIN_IMAGES, b"<html>", "begins with 3c68746d, not 00000803"),
        (TRAIN_IMAGES, LABELS, "begins with 00000801, not 00000803"),
        (TRAIN_LABELS, IMAGES, "begins with 00000803, not 00000801"),
        (TRAIN_IMAGES, IMAGES[:10], "truncated: it ends in its header"),
        (TRAIN_IMAGES, IMAGES[:16], "truncated: it has 0 of the 15680 bytes"),
        (TRAIN_IMAGES, IMAGES[:-1], "truncated: it has 15679 of the 15680 bytes"),
        (TEST_LABELS, encoded(ARRAYS[3])[:-3], "truncated: it has 7 of the 10 bytes"),
        (TRAIN_IMAGES, IMAGES + b"\0", "continues after the 15680 bytes"),
        (TRAIN_IMAGES, encoded(ARRAYS[0][:, 1:]), "27 x 28 pixels, not 28 x 28"),
        (TRAIN_IMAGES, encoded(np.zeros((20, 0, 28), np.uint8)), "0 x 28 pixels"),
        (TRAIN_LABELS, encoded(ARRAYS[1][1:]), "has 20 images, but .* has 19 labels"),
        (TRAIN_LABELS, encoded(np.r_[ARRAYS[1][:-1], np.uint8(10)]), "the label 10 at row 19, not one of 0..9"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, compress, name, content, says):
    message = refused(tmp_path, name, compress(content))
    assert re.search(says, message)


def test_empty_files_are_refused(tmp_path):
    empty = {TEST_IMAGES: encoded(np.zeros((0, 28, 28), np.uint8)), TEST_LABELS: encoded(np.zeros(0, np.uint8))}
    with pytest.raises(DataError, match=f"{TEST_IMAGES} has no images"):
        datasets.mnist(write(tmp_path, GZIPPED | empty))


@pytest.mark.parametrize("cut", [2, 5, 15, 1000, -1, -8])
def test_a_gzip_file_cut_short_is_refused(tmp_path, cut):
    assert "damaged gzip" in refused(tmp_path, TRAIN_IMAGES, GZIPPED[TRAIN_IMAGES][:cut])


@pytest.mark.parametrize("place", [2, 100, -1, -5])
def test_a_gzip_file_with_a_wrong_byte_is_refused(tmp_path, place):
    content = bytearray(GZIPPED[TRAIN_IMAGES])
    content[place] ^= 0x10
    assert "damaged gzip" in refused(tmp_path, TRAIN_IMAGES, bytes(content))


def test_what_follows_a_gzip_file_is_refused(tmp_path):
    assert "damaged gzip" in refused(tmp_path, TRAIN_IMAGES, GZIPPED[TRAIN_IMAGES] + b"junk")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("shape", [(2**32 - 1, 28, 28), (2**32 - 1,) * 3, (2**30 // 784, 28, 28)])
def test_a_header_that_claims_too_much_takes_no_memory(tmp_path, compress, shape):
    path = tmp_path / "huge"
    path.write_bytes(compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + bytes(100)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"huge .*claims"):
        idx.read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_no_more_than_the_limit_is_read_even_if_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "MOST_BYTES", 15679)
    assert "more than the 15679 bytes" in refused(tmp_path, TRAIN_IMAGES, GZIPPED[TRAIN_IMAGES])


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@given(st.sampled_from(NAMES), st.booleans(), st.data())
def test_any_damage_to_a_beginning_or_an_end_is_refused_or_harmless(damaged, name, gzipped, data):
    whole = GZIPPED[name] if gzipped else gzip.decompress(GZIPPED[name])
    content = bytearray(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole) - 1)))])
    header = min(len(content), 20 if gzipped else 16 if "images" in name else 8)
    if header:
        for place in data.draw(st.lists(st.integers(0, header - 1), max_size=3)):
            content[place] ^= 1 << data.draw(st.integers(0, 7))
    write(damaged, GZIPPED | {name: bytes(content)})
    try:
        found = datasets.mnist(damaged)
    except DataError as error:
        message = str(error)
    else:
        message = None
        assert_is_small_mnist(found)
    assert message is None or name in message


# MNIST itself


@pytest.fixture(scope="module")
def real():
    """MNIST, from the folder of the variable as it was when the tests began."""
    if not os.environ.get("PROXBI_DATA"):
        pytest.skip("MNIST is needed: set PROXBI_DATA to a folder that has its four files.")
    return datasets.mnist(os.environ["PROXBI_DATA"])


def test_mnist_has_its_rows(real):
    assert real.train.features.shape == (60000, 784)
    assert real.test.features.shape == (10000, 784)
    assert list(real.train.labels[:5]) == [5, 0, 4, 1, 9]
    assert list(real.test.labels[:5]) == [7, 2, 1, 0, 4]
    assert np.bincount(real.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert real.train.features.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert real.train.features.std() / 255 == pytest.approx(0.3081, abs=5e-5)


def test_mnist_is_the_published_one(real):
    """The arrays, as they do not depend on how the files were compressed."""
    assert hashlib.sha256(encoded(real.train.features.reshape(-1, 28, 28))).hexdigest() == (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    )
    assert hashlib.sha256(encoded(real.test.features.reshape(-1, 28, 28))).hexdigest() == (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    )


def test_standardized_mnist_has_mean_0_and_deviation_1(real):
    features = datasets.standardize(real.train.features)
    assert features.shape == (60000, 785)
    assert features[:, :784].mean(dtype=np.float64) == pytest.approx(0, abs=1e-3)
    assert features[:, :784].std(dtype=np.float64) == pytest.approx(1, abs=1e-3)


# Scaling


def test_standardize_computes_the_formula_in_float32():
    images = np.arange(256, dtype=np.uint8).reshape(2, 128)
    v = images.astype(np.float32)
    expected = (v / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
    with_bias, without = datasets.standardize(images), datasets.standardize(images, bias=False)
    assert with_bias.dtype == without.dtype == np.float32
    assert np.array_equal(without, expected)
    assert np.array_equal(with_bias, np.hstack([expected, np.ones((2, 1), np.float32)]))


@pytest.mark.parametrize("images", [np.zeros((2, 3), np.float32), np.zeros((2, 28, 28), np.uint8)])
def test_standardize_takes_rows_of_raw_pixels_only(images):
    with pytest.raises(TypeError, match="images must be rows of raw pixels"):
        datasets.standardize(images)


def test_rows_can_be_taken():
    rows = datasets.Labelled(np.arange(6).reshape(3, 2), np.arange(3))
    assert rows.take(np.array([2, 0])).labels.tolist() == [2, 0]
    assert rows.take(slice(1, 2)).features.tolist() == [[2, 3]]


# Noise


some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(np.array)
some_rates = st.floats(0, 1, exclude_max=True)
some_seeds = st.integers(0, 2**32)


@given(some_labels, st.sampled_from(["symmetric", "pairwise"]), some_rates, some_seeds)
def test_exactly_the_given_share_is_wrong(labels, kind, rate, seed):
    before = labels.copy()
    noisy = datasets.add_noise(labels, kind, rate, seed, classes=7)
    wrong = noisy != labels
    assert wrong.sum() == int(rate * len(labels))
    assert noisy.dtype == labels.dtype
    assert noisy.min() >= 0
    assert noisy.max() < 7
    if kind == "pairwise":
        assert np.array_equal(noisy[wrong], (labels[wrong] + 1) % 7)
    assert np.array_equal(labels, before)
    assert np.array_equal(noisy, datasets.add_noise(labels, kind, rate, seed, classes=7))


@given(some_labels, st.data(), some_seeds)
def test_class_dependent_counts_are_whole_neighbours_of_the_expected(labels, data, seed):
    weights = data.draw(
        st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7).filter(any), min_size=7, max_size=7)
    )
    transition = np.array(weights, float) / np.sum(weights, axis=1, keepdims=True)
    noisy = datasets.class_dependent_noise(labels, transition, seed)
    for given_class in range(7):
        members = noisy[labels == given_class]
        expected = len(members) * transition[given_class]
        counts = np.bincount(members, minlength=7)
        assert np.all(np.abs(counts - expected) < 1 + 1e-9)
        assert not counts[transition[given_class] == 0].any()
    assert np.array_equal(noisy, datasets.add_noise(labels, "class-dependent", transition, seed, classes=7))


def test_class_dependent_noise_is_unbiased_in_every_row():
    transition = [[0.7, 0.2, 0.1], [0, 1, 0], [0.25, 0.25, 0.5]]
    labels = np.array([0, 0, 0, 1, 2, 2])
    drawn = np.array([datasets.class_dependent_noise(labels, transition, seed) for seed in range(4000)])
    for row, label in enumerate(labels):
        shares = np.bincount(drawn[:, row], minlength=3) / len(drawn)
        assert shares == pytest.approx(transition[label], abs=0.03)  # 4 standard deviations


def test_whole_expected_counts_are_met():
    labels = np.repeat(np.arange(3), 100)
    noisy = datasets.class_dependent_noise(labels, [0.1, 0.0, 0.4], seed=1)
    wrong = noisy != labels
    assert [int(wrong[labels == c].sum()) for c in range(3)] == [10, 0, 40]
    assert Counter(noisy[200:].tolist()) == {0: 20, 1: 20, 2: 60}


def test_confused_digits_are_confused_as_published():
    labels = np.repeat(np.arange(10), 50)
    noisy = datasets.class_dependent_noise(labels, datasets.confused_digits(0.4), seed=0)
    wrong = noisy != labels
    pairs = Counter(zip(labels[wrong].tolist(), noisy[wrong].tolist(), strict=True))
    assert pairs == dict.fromkeys([(2, 7), (3, 8), (5, 6), (6, 5), (7, 1)], 20)


@pytest.mark.parametrize("noise", [datasets.symmetric_noise, datasets.pairwise_noise])
def test_classes_that_do_not_occur_can_be_named(noise):
    labels = np.zeros(1000, int)
    with pytest.raises(ValueError, match="at least 2 classes"):
        noise(labels, 0.5, 0)
    expected = {0, 1} if noise is datasets.pairwise_noise else set(range(10))
    assert set(noise(labels, 0.5, 0, 10).tolist()) == expected


def test_small_integers_do_not_wrap():
    labels = np.arange(256).astype(np.uint8)
    noisy = datasets.pairwise_noise(labels, 0.999, seed=0)
    wrong = noisy != labels
    assert wrong.sum() == 255
    assert np.array_equal(noisy[wrong], labels[wrong] + np.uint8(1))
    with pytest.raises(ValueError, match="uint8 cannot hold 257 classes"):
        datasets.pairwise_noise(labels, 0.1, seed=0, classes=257)


def test_other_seeds_give_other_noise():
    labels = np.arange(1000) % 10
    for kind, rate in [("symmetric", 0.3), ("pairwise", 0.3), ("class-dependent", [0.3] * 10)]:
        first, second = (datasets.add_noise(labels, kind, rate, seed) for seed in (1, 2))
        assert not np.array_equal(first, second)


LABELS_3 = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("labels", "kind", "rate", "seed", "classes", "says"),
    [
        (LABELS_3, "symmetric", -0.1, 0, None, "rate must be in"),
        (LABELS_3, "symmetric", float("nan"), 0, None, "rate must be in"),
        (LABELS_3, "pairwise", 1.0, 0, None, "rate must be in"),
        (LABELS_3, "pairwise", [0.1, 0.2, 0.3], 0, None, "rate must be one number for pairwise noise"),
        (LABELS_3, "asymmetric", 0.1, 0, None, "kind must be one of symmetric, pairwise, class-dependent"),
        (LABELS_3, "symmetric", 0.1, -1, None, "seed must be an integer >= 0"),
        (LABELS_3, "symmetric", 0.1, None, None, "seed must be an integer >= 0"),
        (LABELS_3, "class-dependent", [0.1] * 3, 1.5, None, "seed must be an integer >= 0"),
        (LABELS_3, "symmetric", 0.1, 0, 2, "labels must be in 0..1, got 2 at row 2"),
        (LABELS_3 - 1, "symmetric", 0.1, 0, None, "labels must be in 0..1, got -1 at row 0"),
        (LABELS_3, "symmetric", 0.1, 0, 2.5, "classes must be an integer"),
        (LABELS_3[:0], "symmetric", 0.1, 0, None, "labels is empty"),
        (LABELS_3 / 1, "symmetric", 0.1, 0, None, "labels must be integers in one dimension"),
        (LABELS_3[:, None], "symmetric", 0.1, 0, None, "labels must be integers in one dimension"),
        (LABELS_3, "class-dependent", 0.1, 0, None, "a rate for each class or a transition matrix.*confused_digits"),
        (LABELS_3, "class-dependent", [0.1, 0.1], 0, None, "labels must be in 0..1"),
        (LABELS_3, "class-dependent", [0.1] * 3, 0, 4, "classes is 4, but rate is for 3"),
        (LABELS_3, "class-dependent", [0.1, 0.1, 1.1], 0, None, "probabilities"),
        (LABELS_3, "class-dependent", [0.1, 0.1, float("nan")], 0, None, "probabilities"),
        (LABELS_3, "class-dependent", np.eye(3)[:2], 0, None, "square matrix"),
        (LABELS_3, "class-dependent", np.eye(3) / 2, 0, None, "row 0 sums to 0.5"),
    ],
)
def test_bad_arguments_are_refused_by_name(labels, kind, rate, seed, classes, says):
    with pytest.raises((ValueError, TypeError), match=says):
        datasets.add_noise(labels, kind, rate, seed, classes)


def test_a_bad_rate_of_confusion_is_refused():
    with pytest.raises(ValueError, match="rate must be in"):
        datasets.confused_digits(1.5)
