"""The planner page in a real Chromium: every figure is the shown layout's, by hand or not."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shlex
from pathlib import Path

import pytest
from browsing import fact, leading_number, violations
from playwright.sync_api import expect

from meshwright.cli import run as command_line

pytestmark = pytest.mark.browser

QUESTION = {"model": "llama3-8b", "cluster": "h100:2x8", "seq": "4096", "batch": "512"}


def run(command: str) -> dict:
    """What a command line of the page answers as JSON."""
    words = shlex.split(command)
    assert words[0] == "meshwright"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = command_line([*words[1:], "--json"])
    assert code in (0, 1)
    return json.loads(said.getvalue())


def axis(page, name: str):
    return page.locator(f'[data-name="axis-{name}"]')


def taken(page) -> str:
    return page.get_by_role("region", name="Take it with you").locator("pre").first.inner_text()


def figures(page) -> dict[str, str]:
    return {name: fact(page, name) for name in ("step", "memory", "mfu", "bubble")}


def check_against_command(page, label: str) -> None:
    """The shown figures are those that the shown command line prints for the shown layout."""
    priced = run(taken(page))
    estimate = priced["estimate"]
    assert fact(page, "label") == label
    assert leading_number(fact(page, "mfu")) == pytest.approx(estimate["mfu"] * 100, abs=0.06)
    assert leading_number(fact(page, "bubble")) == pytest.approx(
        estimate["bubble_fraction"] * 100, abs=0.06
    )
    assert leading_number(fact(page, "memory")) == pytest.approx(
        estimate["peak_memory_bytes"] / 2**30, rel=6e-3
    )
    assert leading_number(fact(page, "step")) == pytest.approx(estimate["step_time_s"], rel=6e-3)


def check_frameworks(frameworks, rows):
    """Each percentage of the table is the ratio of two figures that the table shows."""
    best = frameworks[0]["pessimistic_s"]
    said = 0
    for one, row in zip(frameworks, rows.all(), strict=True):
        found = re.match(r"([\d.]+)% (slower|faster)", one["why_not"])
        if found is None:
            continue
        said += 1
        sign = 1 if found[2] == "slower" else -1
        change = sign * 100 * (one["pessimistic_s"] / best - 1)
        assert change == pytest.approx(float(found[1]), abs=0.51 if "." not in found[1] else 0.051)
        badly = row.locator("td.number").nth(1).inner_text()
        shown = leading_number(badly) * (1e-3 if badly.endswith("ms") else 1)
        assert shown == pytest.approx(one["pessimistic_s"], rel=0.006)
    assert said, "no framework is compared by its time"


def check_points(page, candidates):
    """Every layout has its point or stands above the scale; pointing near one says its figures."""
    scatter = page.locator(".scatter")
    drawn = scatter.locator("[data-point], [data-above]")
    expect(drawn).to_have_count(len(candidates["label"]))
    above = [int(one.get_attribute("data-above")) for one in scatter.locator("[data-above]").all()]
    times = candidates["step_time_s"]
    beneath = [t for i, t in enumerate(times) if i not in above]
    assert all(times[i] > max(beneath) for i in above)
    lightest = min(
        (i for i in range(len(times)) if i not in above),
        key=lambda i: candidates["peak_memory_bytes"][i],
    )
    one = scatter.locator(f'[data-point="{lightest}"]')
    one.scroll_into_view_if_needed()
    box = one.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - 4, box["y"] + box["height"] / 2 + 1)
    expect(scatter.locator("p").first).to_contain_text(candidates["label"][lightest] + ":")


def test_the_plan_is_the_command_lines(visit, api):
    page = visit.go("/plan", **QUESTION)
    answer = api.get("/api/plan", params=QUESTION).json()
    expect(page.locator('[data-fact="label"]')).to_have_text(answer["label"])
    check_against_command(page, answer["label"])
    rows = page.locator('[data-table="candidates"] tbody tr')
    assert rows.first.locator("code").inner_text() == answer["label"]
    assert rows.first.locator("td").first.inner_text() == "plan"
    pessimistic = [t for t in answer["candidates"]["pessimistic_s"][:12] if t is not None]
    assert min(pessimistic) == pessimistic[0], "the plan is the best in what it is ranked by"
    expect(page.locator('[data-fact="ranking"]')).to_contain_text("goes badly")
    expect(page.locator('[data-table="frameworks"] tbody tr')).to_have_count(
        len(answer["frameworks"])
    )
    check_frameworks(answer["frameworks"], page.locator('[data-table="frameworks"] tbody tr'))
    check_points(page, answer["candidates"])
    page.get_by_role("button", name="Why each lost").click()
    lost = page.locator(".lost li")
    expect(lost.first).to_be_visible()
    assert not any("another shape" in text for text in lost.all_inner_texts())
    assert violations(page) == []


def test_degrees_move_together_and_figures_are_the_layouts(visit, api):
    page = visit.go("/plan", **QUESTION)
    expect(axis(page, "tp")).to_be_visible()
    axis(page, "tp").select_option("2")
    expect(page.locator('[data-fact="followed"]')).to_contain_text("dp 16 → 8")
    expect(axis(page, "dp")).to_have_value("8")
    price = api.get("/api/price", params={**QUESTION, "tp": 2}).json()
    expect(page.locator('[data-fact="label"]')).to_have_text(price["label"])
    check_against_command(page, price["label"])
    expect(page).to_have_url(re.compile(r"tp=2"))  # written when the hand rests
    with page.expect_download() as caught:
        page.get_by_role("button", name="Plan as JSON").click()
    saved = json.loads(Path(caught.value.path()).read_text("utf-8"))
    assert saved["layout"]["tp"] == 2 and saved["layout"]["dp"] == 8
    with page.expect_download() as caught:
        page.locator('[data-export="megatron"]').click()
    text = Path(caught.value.path()).read_text("utf-8")
    assert re.search(r"tensor-model-parallel-size\W+2\b", text)


def grip(page, name: str):
    return page.get_by_role("slider", name=name)


def dragged(page, name: str, to_x: float | None = None, to_y: float | None = None) -> None:
    """Drag a grip's middle to a share of the width or height of its drawing."""
    handle = grip(page, name).locator(".knob")
    handle.scroll_into_view_if_needed()
    box, area = handle.bounding_box(), handle.locator("xpath=ancestor::*[name()='svg'][1]").bounding_box()  # fmt: skip
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    x = x if to_x is None else area["x"] + to_x * area["width"]
    y = y if to_y is None else area["y"] + to_y * area["height"]
    page.mouse.move(x, y, steps=3)
    page.mouse.up()


def test_the_picture_is_taken_hold_of(visit, api):
    """A cut, a stage border and a shard by pointer and by key; dp follows, figures are the engine's."""
    page = visit.go("/plan", **QUESTION)
    shape = page.get_by_role("region", name="Take hold of it")
    start = api.get("/api/plan", params=QUESTION).json()["plan"]["layout"]
    assert (start["tp"], start["pp"]) == (1, 1)

    def check(**axes):
        price = api.get("/api/price", params={**QUESTION, **axes}).json()
        expect(page.locator('[data-fact="label"]')).to_have_text(price["label"])
        degrees = " · ".join(str(price["layout"][axis]) for axis in ("dp", "tp", "pp"))
        expect(shape.locator('[data-shape="degrees"]')).to_have_text(degrees)
        check_against_command(page, price["label"])
        step = re.compile(r"^\s*" + re.escape(fact(page, "step")))
        expect(shape.locator('[data-shape="step"]')).to_have_text(step)
        expect(shape.locator('[data-shape="memory"]')).to_have_text(fact(page, "memory"))
        return price

    # What Megatron-LM cannot run has no figures, but its degrees and the nearest that can run.
    grip(page, "Pipeline stages").focus()
    page.keyboard.press("ArrowRight")
    expect(shape.locator(".said")).to_contain_text("Not possible")
    expect(shape.locator('[data-shape="degrees"]')).to_have_text("8 · 1 · 2")
    grip(page, "ZeRO shard").focus()
    for _ in range(start["zero"] - 1):  # a stage of ZeRO at a time
        page.keyboard.press("ArrowLeft")
    assert check(pp=2, zero=1)["layout"]["dp"] == 8
    dragged(page, "Tensor slices of each matrix", to_y=(26 + 150 / 2) / 192)
    assert check(pp=2, zero=1, tp=2)["layout"]["dp"] == 4
    grip(page, "Devices of a tensor group").focus()
    page.keyboard.press("End")
    expect(shape).to_contain_text("the group crosses nodes")
    page.keyboard.press("Home")
    grip(page, "Pipeline stages").focus()
    page.keyboard.press("Home")
    check(tp=1, pp=1, zero=1)
    dragged(page, "ZeRO shard", to_x=0.67)
    check(tp=1, pp=1, zero=2)
    assert violations(page) == []


def test_a_border_between_stages_moves_layer_by_layer(visit, api):
    page = visit.go("/plan", **QUESTION, pp="2", tp="1")
    border = grip(page, "Border between stages 0 and 1")
    expect(border).to_have_attribute("aria-valuetext", re.compile("after layer"))
    border.focus()
    before = int(border.get_attribute("aria-valuenow"))
    page.keyboard.press("ArrowRight")
    expect(border).to_have_attribute("aria-valuenow", str(before + 1))
    expect(page).to_have_url(re.compile("stage_layers="))
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    query = {**QUESTION, "pp": 2, "tp": 1, "v": 1, "stage_layers": f"{before + 1},{31 - before}"}
    price = api.get("/api/price", params=query).json()
    expect(page.locator('[data-fact="label"]')).to_have_text(price["label"])
    if price["accepted"]:
        check_against_command(page, price["label"])
    else:
        assert set(figures(page).values()) == {"–"}


def test_an_impossible_layout_has_no_figures_but_near_ones(visit):
    page = visit.go("/plan", **QUESTION)
    axis(page, "dp").select_option("8")
    expect(page.locator(".cost")).to_contain_text("dp 8 = 8 devices, but the cluster has 16")
    assert set(figures(page).values()) == {"–"}
    expect(page.get_by_role("region", name="Take it with you")).to_have_count(0)
    expect(page.get_by_text("The step, opened")).to_have_count(0)
    choices = page.locator("[data-completion]")
    expect(choices.nth(1)).to_be_visible()
    label = choices.first.get_attribute("data-completion")
    choices.first.click()
    expect(page.locator('[data-fact="label"]')).to_have_text(label)
    expect(page.locator('[data-fact="step"]')).not_to_have_text("–")
    check_against_command(page, label)
    page.get_by_role("button", name="Back to the plan").click()
    expect(page.locator(".answer .eyebrow")).to_have_text(re.compile("the plan", re.IGNORECASE))


@pytest.mark.parametrize(
    "axes",
    [
        {"tp": "4", "pp": "2", "zero": "1"},
        {"pp": "4", "v": "2", "zero": "1", "micro_batch": "1"},
        {"zero": "1", "recompute": "full", "micro_batch": "4"},
    ],
)
def test_an_address_with_axes_is_that_layout(visit, axes):
    page = visit.go("/plan", **QUESTION, **axes)
    expect(page.locator('[data-fact="label"]')).not_to_have_text("…")
    label = fact(page, "label")
    for name in ("tp", "pp", "zero"):
        if name in axes:
            assert f"{name}{axes[name]}" in label
    check_against_command(page, label)


def test_every_degree_that_is_offered_leads_somewhere(api):
    """No dead ends: each option is priced, or has layouts near it."""
    for name, values in {"tp": (1, 2, 4, 8, 16, 32), "pp": (1, 2, 4, 8, 16, 32), "cp": (1, 2, 4), "dp": (1, 2, 4, 8, 16), "micro_batch": (1, 2, 8, 16), "v": (2, 3, 5), "zero": (0, 1, 2, 3)}.items():  # fmt: skip
        for value in values:
            query = {**QUESTION, name: value, "changed": name}
            price = api.get("/api/price", params=query).json()
            assert (
                price["accepted"] == (price["estimate"] is not None) == (price["links"] is not None)
            )
            assert price["accepted"] or price["completions"], (name, value, price["problem"])
            for near in price["completions"]:
                again = api.get("/api/price", params={**QUESTION, **near["axes"]}).json()
                assert again["label"] == near["label"] and again["accepted"]


MODELS, CLUSTERS = ("llama2-7b", "llama3-8b", "llama2-13b", "mixtral-8x7b"), ("h100:1x8", "h100:2x8", "a100-80g:2x8", "a100-80g:4x8")  # fmt: skip
CHOICES = {
    "tp": ("1", "2", "4", "8"), "pp": ("1", "2", "4"), "zero": ("0", "1", "2", "3"),
    "micro_batch": ("1", "2", "4"), "recompute": ("none", "selective", "full"), "v": ("1", "2"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_figures_of_random_layouts_are_the_command_lines(visit, seed):
    """Whatever is asked and set, the page shows what its own command line prints, or nothing."""
    draw = random.Random(seed)
    question = {
        "model": draw.choice(MODELS),
        "cluster": draw.choice(CLUSTERS),
        "seq": draw.choice(("2048", "4096")),
        "batch": draw.choice(("128", "512")),
        "framework": draw.choice(("auto", "megatron", "torchtitan", "any")),
    }
    axes = {name: draw.choice(CHOICES[name]) for name in draw.sample(sorted(CHOICES), 2)}
    page = visit.go("/plan", **question, **axes)
    visit.wrong[:] = [w for w in visit.wrong if "409" not in w]
    if page.get_by_role("heading", name="No plan").count():
        return  # nothing fits at all: said in a sentence
    expect(page.locator('[data-fact="label"]')).not_to_have_text("…")
    if fact(page, "step") == "–":
        assert set(figures(page).values()) == {"–"}
        assert page.locator(".cost p.bad").inner_text()
    else:
        check_against_command(page, fact(page, "label"))


def test_a_dropped_config_is_its_own_model(fresh):
    config = {
        "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 40, "intermediate_size": 13824, "vocab_size": 32000,
    }  # fmt: skip
    page = fresh.go("/plan", model="llama3-8b", cluster="h100:1x8", seq="4096", batch="256")
    drop = """([name, text]) => { const data = new DataTransfer()
      data.items.add(new File([text], name)); window.dispatchEvent(
        new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })) }"""
    page.evaluate(drop, ["notes.json", "not json at all"])
    wrong = page.locator('[data-fact="upload-problem"]')
    expect(wrong).to_be_visible()
    expect(wrong).to_contain_text("notes.json: this is not JSON")
    unbounded = json.dumps(config)[:-1] + ', "time_step_limit": [0.0, Infinity]}'
    page.evaluate(drop, ["config.json", unbounded])
    expect(page.locator('[data-fact="upload"]')).to_contain_text("40 layers of width 5120")
    expect(page.locator('[data-fact="upload"]')).to_contain_text("13B")
    expect(page.locator('[data-fact="label"]')).to_be_visible()
    expect(page.locator(".levels")).not_to_contain_text("parameters")
    with page.expect_download() as caught:
        page.get_by_role("button", name="Plan as JSON").click()
    assert json.loads(Path(caught.value.path()).read_text("utf-8"))["model"]["hidden"] == 5120
    fresh.wrong[:] = [w for w in fresh.wrong if "422" not in w]


def test_answers_are_compressed_on_the_wire(api):
    answer = api.get("/api/plan", params=QUESTION)
    assert answer.headers["content-encoding"] == "gzip"
    page = api.get("/app.js")
    assert page.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    "axes", [{"schedule": "nonsense"}, {"cp_method": "telepathy"}, {"shard": 3}]
)
def test_what_no_layout_has_is_a_sentence(api, axes):
    answer = api.get("/api/price", params={**QUESTION, **axes})
    assert answer.status_code == 200
    assert not answer.json()["accepted"] and answer.json()["problem"]["sentence"]


def test_a_framework_without_sequence_parallelism_takes_a_tensor_degree(api):
    """What follows from a degree is what the framework has: no dead end, live and in the table."""
    query = {
        "model": "llama3-8b",
        "cluster": "tpu-v5p:2x4",
    }  # MaxText alone runs here, and has none
    price = api.get("/api/price", params={**query, "tp": 4}).json()
    assert price["accepted"] and price["layout"]["dp"] == 2
    assert not price["layout"]["sequence_parallel"]
    table = api.get("/api/prices", params=query).json()
    assert any(tp == 4 for tp in table["tp"])
    for path in ("/api/prices", "/api/plan"):
        named = api.get(path, params={**query, "framework": "maxtext", "recipe": "auto"})
        assert named.status_code == 200, named.text


def test_what_does_not_fit_is_not_praised_for_its_speed(visit, api):
    query = {"model": "llama2-70b", "cluster": "a100-80g:8x8", "seq": "4096", "batch": "512"}
    price = api.get("/api/price", params={**query, "tp": "2"}).json()
    assert price["accepted"] and not price["estimate"]["fits"]
    page = visit.go("/plan", **query, tp="2")
    expect(page.locator('[data-fact="summary"]')).to_have_text(
        f"It does not fit. {price['against']['sentences'][0]}"
    )
