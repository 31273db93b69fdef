"""Thumbnails show their pixels, and the charts of a page stand where their numbers are."""

import base64
import io
from xml.etree import ElementTree

import numpy as np
import pytest

from proxbi.cleaning.report.png import thumbnails
from proxbi.report import svg
from proxbi.report.markup import percent


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
    assert (points[0], points[-1].split(",")[0]) == ("62.0,200.0", "418.0")


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.17, 0.19), (-3.0, 40_000.0), (1e-9, 3e-9)])
def test_ticks_are_few_and_inside(low, high):
    ticks = svg._nice(low, high, 5)
    assert 2 <= len(ticks) <= 6
    assert low <= ticks[0] < ticks[-1] <= high


def drawn(*curves: svg.Curve, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(svg.lines(curves, "x", "y", **options))


def words(chart: ElementTree.Element) -> dict[str, tuple[float, float]]:
    return {str(text.text): (float(text.get("x")), float(text.get("y"))) for text in chart.iter("text")}


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.1, 2.4, ["1", "1.5", "2", "2.5"]),
        (1.1, 9.0, ["1", "2", "5", "10"]),
        (1.5, 6.5, ["2", "5"]),
        (1e-14, 2e-14, ["10⁻¹⁴", "1.5e-14", "2e-14"]),
        (0.9, 120.0, ["1", "10", "100"]),
        (47.0, 1.3e10, ["100", "10⁴", "10⁶", "10⁸", "10¹⁰"]),
        (1e-60, 1e3, ["10⁻⁶⁰", "10⁻⁴⁰", "10⁻²⁰", "1"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_however_short_or_long_it_is(low, high, ticks):
    chart = drawn(svg.Curve("a", [low, high], [low, high]), log=True, log_x=True)
    shown = [text.text for text in chart.iter("text") if text.get("class") == "end"]
    assert shown == ticks


def test_a_logarithmic_axis_across_has_equal_steps_for_equal_factors():
    chart = drawn(svg.Curve("a", [0, 1, 10, 100], [1, 2, 3, 4], dots=True), log_x=True)
    places = [float(dot.get("cx")) for dot in chart.iter("circle")]
    assert len(places) == 3, "0 has no place on it"
    assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.1)


def test_a_band_is_inside_the_plot_and_around_its_curve():
    chart = drawn(svg.Curve("a", [1, 2, 3], [2, 2, 2], band=([1, 1, np.nan], [4, 5, 6])))
    corners = [tuple(map(float, corner.split(","))) for corner in chart.find("polygon").get("points").split()]
    assert len(corners) == 4, "the last range is not known"
    line = [float(point.split(",")[1]) for point in chart.find("polyline").get("points").split()]
    assert min(y for _, y in corners) < line[0] < max(y for _, y in corners)
    assert all(30 <= y <= 200 for _, y in corners)


def test_long_legends_have_rows_and_cover_nothing():
    names = [*(f"a curve with quite a long name, number {k}" for k in range(3)), "x" * 53 + "…"]
    given = [*names[:3], "x" * 100]
    chart = drawn(*(svg.Curve(name, [0, 1], [0, k]) for k, name in enumerate(given)), title="Title")
    found = words(chart)
    heights = [found[name][1] for name in names]
    assert sorted(set(heights)) == heights, "one below the other"
    keys = [line for line in chart.iter("line") if line.get("class").startswith("c")]
    assert min(float(line.get("x1")) for line in keys) >= 0
    top = min(float(line.get("y1")) for line in chart.iter("line") if line.get("class") == "grid")
    assert found["Title"][1] < found["y"][1] < heights[0] < heights[-1] < top
    assert float(chart.get("viewBox").split()[-1]) > 240


def test_a_level_and_curves_without_a_name():
    chart = drawn(
        svg.Curve("a", [0, 1], [0.2, 0.3]), svg.Curve("", [0, 1], [0.3, 0.4]), svg.Curve("b", [0], [0]), level=1.0
    )
    level = next(line for line in chart.iter("line") if line.get("class") == "mark")
    assert 30 <= float(level.get("y1")) == float(level.get("y2")) <= 200
    assert {"a", "b"} <= set(words(chart))
    assert "None" not in words(chart)


def test_intervals_on_a_logarithmic_axis():
    marks = [svg.Mark("a", 1.0, 0.5, 2.0), svg.Mark("b", 10.0, 9.0, 11.0), svg.Mark("c", 100.0, 90.0, 110.0)]
    chart = ElementTree.fromstring(svg.intervals(marks, "ms", "{:g}".format, log=True))
    a, b, c = (float(dot.get("cx")) for dot in chart.iter("circle"))
    assert c - b == pytest.approx(b - a, abs=0.1)


@pytest.mark.parametrize("low", [1e-30, 0.7, 3e4])
def test_no_logarithmic_axis_is_crowded_or_empty(low):
    for decades in np.linspace(0.05, 60, 400):
        high = low * 10**decades
        ticks = svg._ticks(svg.Axis(low, high, 0.0, 1.0, svg.log10), 5)
        assert 2 <= len(ticks) <= 10, decades
        assert low * (1 - 1e-6) <= ticks[0] < ticks[-1] <= high * (1 + 1e-6)


def test_the_last_number_below_a_plot_is_not_cut():
    found = words(drawn(svg.Curve("a", [0, 10_000], [0, 1])))
    assert found["10,000"][0] + svg.LETTER * len("10,000") / 2 <= svg.WIDTH
