"""Thumbnails show their pixels, and the charts of a page stand where their numbers are."""

import base64
import io
from xml.etree import ElementTree

import numpy as np
import pytest

from proxbi.cleaning.report import svg
from proxbi.cleaning.report.markup import percent
from proxbi.cleaning.report.png import thumbnails


def decoded(address: str) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(255 * imread(io.BytesIO(base64.b64decode(address.split(",")[1])), format="png")).astype(np.uint8)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_a_thumbnail_is_the_picture(shape):
    images = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    for image, address in zip(images, thumbnails(images, side=16), strict=True):
        assert np.array_equal(decoded(address), image)


def test_pixels_of_any_scale_are_stretched_and_gaps_are_black():
    image = np.array([[[-1.0, 0.0], [1.0, np.nan]]])
    assert decoded(thumbnails(image, side=16)[0]).tolist() == [[0, 128], [255, 0]]
    assert decoded(thumbnails(np.full((1, 2, 2), 0.3), side=16)[0]).tolist() == [[0, 0], [0, 0]]


def test_large_pictures_are_shrunk_by_averages_and_keep_their_shape():
    image = np.kron(np.arange(8, dtype=np.uint8).reshape(2, 4) * 30, np.ones((10, 10), np.uint8))
    assert np.array_equal(decoded(thumbnails(image[None], side=4)[0]), np.arange(8).reshape(2, 4) * 30)
    assert decoded(thumbnails(np.zeros((1, 300, 100, 3)), side=32)[0]).shape == (32, 11, 3)


def test_dots_stand_where_their_values_are():
    marks = [svg.Mark("a", 1.0, 0.5, 1.5), svg.Mark("b", 2.0, 1.5, 2.5, strong=True), svg.Mark("c", 4.0, 4.0, 4.0)]
    chart = ElementTree.fromstring(svg.intervals(marks, "loss", "{:g}".format))
    a, b, c = (float(dot.get("cx")) for dot in chart.iter("circle"))
    assert (c - b) == pytest.approx(2 * (b - a), abs=0.1)
    ends = [line for line in chart.iter("line") if "line" in line.get("class")]
    assert float(ends[0].get("x1")) == pytest.approx(a - (b - a) / 2, abs=0.1)
    axis = next(line for line in chart.iter("line") if line.get("class") == "axis")
    width = float(axis.get("x2")) - float(axis.get("x1"))
    assert c - float(ends[0].get("x1")) == pytest.approx(width / 1.1, abs=0.1)  # 5 % of room at either end


def test_bars_begin_at_zero():
    marks = [svg.Mark("a", 0.2, 0.1, 0.3), svg.Mark("b", 0.4, 0.3, 0.6), svg.Mark("none", 0.0, 0.0, 0.0)]
    bars = [
        float(bar.get("width"))
        for bar in ElementTree.fromstring(svg.intervals(marks, "", percent, bars=True)).iter("rect")
    ]
    assert bars[1] == pytest.approx(2 * bars[0], abs=0.1)
    assert bars[2] == 0
    empty = svg.intervals([svg.Mark("none", 0.0, 0.0, 0.0)], "", percent, bars=True)
    assert ElementTree.fromstring(empty).find("rect").get("width") == "0"


def test_a_long_name_is_cut_before_its_note_and_whole_in_the_tooltip():
    chart = ElementTree.fromstring(svg.intervals([svg.Mark("a" * 50, 1.0, 0.5, 1.5, note=" (7)")], "", percent))
    name = next(text for text in chart.iter("text") if text.find("title") is not None)
    assert name.find("title").text == "a" * 50
    assert name.find("title").tail == "a" * (svg.LETTERS - 5) + "… (7)"


def test_heights_of_the_histogram_are_square_roots_of_shares():
    chart = ElementTree.fromstring(svg.histogram({"all": np.array([0.01] * 9 + [0.99])}, "weight"))
    heights = 200 - np.array([float(point.split(",")[1]) for point in chart.find("path").get("d")[1:].split(" L")])
    assert heights.max() == pytest.approx(170, abs=0.1)
    assert heights[-2] == pytest.approx(170 / 3, abs=0.1)


def test_points_that_cannot_be_drawn_are_left_out():
    curve = svg.Curve("loss", [0, 1, 2, 3, 4], [1.0, np.nan, 0.0, np.inf, 10.0])
    points = {
        log: ElementTree.fromstring(svg.lines([curve], "step", "loss", log=log)).find("polyline").get("points").split()
        for log in (False, True)
    }
    assert len(points[False]) == 3
    assert len(points[True]) == 2
    nothing = ElementTree.fromstring(svg.lines([svg.Curve("loss", [0], [0.0])], "step", "loss", log=True))
    assert nothing.find("polyline").get("points") == ""


def test_long_curves_are_thinned_and_keep_their_ends():
    chart = ElementTree.fromstring(svg.lines([svg.Curve("loss", range(10_000), range(10_000))], "step", "loss"))
    points = chart.find("polyline").get("points").split()
    assert len(points) == svg.POINTS
    assert (points[0], points[-1].split(",")[0]) == ("62.0,200.0", "426.0")


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.17, 0.19), (-3.0, 40_000.0), (1e-9, 3e-9)])
def test_ticks_are_few_and_inside(low, high):
    ticks = svg._nice(low, high, 5)
    assert 2 <= len(ticks) <= 6
    assert low <= ticks[0] < ticks[-1] <= high
