"""What is pointed at in one view lights up in the others; two layouts side by side."""

from __future__ import annotations

import re

import pytest
from browsing import fact, leading_number, violations
from playwright.sync_api import expect

from meshwright.planner.comparison import compare
from meshwright.specs.plan import Plan

pytestmark = pytest.mark.browser

QUESTION = {"model": "llama2-70b", "cluster": "a100-80g:4x8", "seq": "4096", "batch": "64"}
AXES = {"tp": "4", "pp": "4", "zero": "1", "v": "1", "micro_batch": "1", "recompute": "full"}


@pytest.fixture(scope="module")
def priced(api):
    answer = api.get("/api/price", params={**QUESTION, **AXES}).json()
    assert answer["accepted"], answer["problem"]
    return answer


@pytest.fixture(scope="module")
def step(api, priced):
    return api.post("/api/timeline", json={"plan": priced["plan"]}).json()


def point(page, area, share: float, lane: int) -> None:
    """Put the pointer on a moment of a lane, as a share of what is shown."""
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 56 + share * (box["width"] - 56), box["y"] + 26 * lane + 13)


def opened(visit):
    page = visit.go("/plan", **QUESTION, **AXES)
    page.set_viewport_size({"width": 1280, "height": 2400})
    section = page.get_by_role("region", name="The step as a timeline")
    expect(section.locator("[data-span]").first).to_be_visible()
    section.get_by_role("button", name="All").click()
    return page, section


def test_the_step_s_timeline_is_the_plan_s(api, priced, step):
    """Its memory is the estimate's to the byte, its length the closed form's within two per cent."""
    estimate = priced["estimate"]
    assert max(rank["peak_bytes"] for rank in step["memory"]) == pytest.approx(
        estimate["peak_memory_bytes"], rel=1e-9
    )
    assert step["step_s"] == pytest.approx(estimate["step_time_s"], rel=0.02)
    assert len(step["op"]["rank"]) >= 2 * 4 * step["micro_batches"]
    sent = {one["axis"]: one for one in step["carried"]}
    # One forward of a stage: two all-reduces a layer of one micro-batch's hidden state, ring of four.
    assert sent["tp"]["each_bytes"] == pytest.approx(20 * 2 * 2 * 3 / 4 * 4096 * 8192 * 2)
    assert sent["pp"]["each_bytes"] == pytest.approx(4096 * 8192 * 2 / 4)
    assert not sent["tp"]["crosses_nodes"] and sent["pp"]["crosses_nodes"]
    plan = api.get("/api/plan", params=QUESTION).json()["plan"]
    own = api.get("/api/timeline", params=QUESTION)
    assert own.json() == api.post("/api/timeline", json={"plan": plan}).json()


def test_a_step_of_twenty_thousand_operations_is_drawn(api):
    """20,480 operations: forwards and whole backwards are two of each, not three."""
    query = {"model": "llama2-70b", "cluster": "a100-80g:8x8", "seq": "4096", "batch": "1024"}
    layout = api.get("/api/plan", params=query).json()["plan"]["layout"]
    micro_batches = 1024 // layout["dp"] // layout["micro_batch"]
    chunks = layout["pp"] * layout["virtual_stages"] * micro_batches
    drawn = api.get("/api/timeline", params=query)
    assert drawn.status_code == 200, drawn.json()
    assert len(drawn.json()["op"]["rank"]) >= 2 * chunks > 16_000


def test_an_operation_lights_up_its_part_its_stage_its_link_and_its_term(visit, step):
    page, section = opened(visit)
    op, kinds = step["op"], step["kinds"]
    at = next(i for i, rank in enumerate(op["rank"]) if rank == 2 and kinds[op["kind"][i]] == "B")
    point(
        page,
        section.locator(".area"),
        (op["start_s"][at] + op["end_s"][at]) / 2 / step["step_s"],
        2,
    )
    linked = section.locator('[data-fact="linked"]')
    expect(linked).to_contain_text(f"Stage 2, backward of micro-batch {op['micro'][at] + 1}")
    expect(linked).to_contain_text("along the tensor axis over nvlink")
    expect(linked).to_contain_text("along the pipeline axis over infiniband")
    lit = page.locator(".scroll tr.pointed")
    expect(lit.first).to_be_attached()
    names = {
        text.split("\t")[0].split(" computation")[0].split(" communication")[0].strip()
        for text in lit.all_inner_texts()
    }
    wanted = {name.replace("_", " ") for name in (*step["parts"]["B"], "pipeline_p2p")}
    assert names == wanted and "recompute" in names
    # A middle stage has the bar of the middle stages, and of it the activations.
    bars = page.locator(".bars .here")
    expect(bars).to_have_count(1)
    expect(page.locator('.bars [data-lit="true"]').first).to_be_attached()
    shape = page.get_by_role("region", name="Take hold of it")
    expect(shape.locator(".cut.tensor.pointed").first).to_be_attached()
    expect(shape.locator("rect.stage")).to_have_count(1)
    expect(shape.locator("math .lit", has_text=re.compile("^M$")).first).to_be_attached()
    # The same micro-batch stands out on every stage.
    many = section.locator('[data-span][data-lit="true"]').count()
    assert 0 < many < section.locator("[data-span]").count()


def test_a_gap_is_the_bubble_and_the_bubble_is_the_gaps(visit, step):
    page, section = opened(visit)
    point(page, section.locator(".area"), 0.002, 3)

    expect(section.locator('[data-fact="linked"]')).to_contain_text("Stage 3 waits")
    expect(page.locator("tr.pointed")).to_have_count(1)
    expect(page.locator("tr.pointed")).to_contain_text("pipeline bubble")
    expect(page.locator("math .lit", has_text=re.compile("^PP$")).first).to_be_attached()
    # The other way round: a part of the step, and the operations that it is made of.
    page.locator("tr", has_text="optimizer").hover()
    lit = section.locator('[data-span][data-lit="true"]')
    expect(lit).to_have_count(step["ranks"])
    page.locator("h1").hover()
    expect(section.locator("[data-lit]")).to_have_count(0)


def test_the_timeline_by_keyboard(visit, step):
    page, section = opened(visit)
    page.locator("h1").hover()
    section.get_by_role("application").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    linked = section.locator('[data-fact="linked"]')
    expect(linked).to_contain_text("Stage 1, forward of micro-batch")
    expect(page.locator("tr.pointed").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(linked).to_be_empty()
    assert violations(page) == []
    for width in (360, 2560):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_micro_batch_lights_up_in_every_schedule(visit):
    page = visit.go("/sim/pipeline", pp=4, m=8)
    stacked = page.get_by_role("region", name="Schedules on one scale")
    expect(stacked.locator(".one")).to_have_count(4)
    spans = stacked.locator("[data-span]").count()
    point(page, stacked.locator(".area").nth(1), 0.5 / 33, 0)
    expect(stacked.locator('[data-fact="linked"]')).to_contain_text(
        "1F1B, rank 0: forward of micro-batch 1"
    )
    # One forward and one backward a rank; twice as many with two chunks, one half more with halves.
    lit = stacked.locator('[data-span][data-lit="true"]')
    expect(lit).to_have_count(4 * (2 + 2 + 4 + 3))
    assert stacked.locator("[data-span]").count() == spans
    terms = page.locator(".simulation dl math .lit").all_text_contents()
    assert terms and set(terms) <= {"M", "v"}


def test_two_pinned_layouts_are_compared_as_the_command_line_does(visit, api, priced):
    page = visit.go("/plan", **QUESTION)
    page.get_by_role("button", name="Pin as first").click()
    first = fact(page, "label")
    visit.go("/plan", **QUESTION, **AXES, first="plan")
    page.get_by_role("button", name="Pin as second").click()
    section = page.get_by_role("region", name="Two layouts compared")
    plan = api.get("/api/plan", params=QUESTION).json()["plan"]
    told = compare(Plan.parse(plan), Plan.parse(priced["plan"]))
    expect(section.locator('[data-fact="verdict"]')).to_contain_text(told.verdict)
    assert section.locator('[data-pin="first"] code').inner_text() == first
    assert section.locator('[data-pin="second"] code').inner_text() == priced["label"]
    largest = max(told.time_parts, key=lambda part: abs(part.second - part.first))
    top = section.locator("[data-compared]").first
    assert top.get_attribute("data-compared") == largest.name
    shown = [leading_number(text) for text in top.locator(".number").first.inner_text().split("\n")]
    assert shown == pytest.approx([largest.first, largest.second], rel=6e-3)
    assert violations(page) == []
    page.get_by_role("button", name="Let go of the first").click()
    expect(page).to_have_url(re.compile(r"^(?!.*first=)"))


def test_why_a_layout_lost_points_at_the_part_that_loses(visit, api):
    page = visit.go("/plan", **QUESTION)
    page.get_by_role("button", name="Why each lost").click()
    expect(page.locator(".lost li").first).to_be_visible()
    reasons = api.get("/api/defence", params=QUESTION).json()["reasons"]
    assert {one["where"] for one in reasons} >= {"time", "memory"}
    for where in ("time", "memory"):
        reason = next(one for one in reasons if one["where"] == where)
        row = page.locator(".lost li", has_text=reason["why_not"]).first
        row.locator("[data-lost]").click()
        section = page.get_by_role("region", name="Two layouts compared")
        lit = section.locator(".part.lit")
        expect(lit).to_have_count(1)
        assert lit.get_attribute("data-compared") == reason["part"]
        if where == "memory":
            assert "out of memory" in reason["why_not"]
        again = api.get("/api/price", params={**QUESTION, **reason["axes"]}).json()
        expect(section.locator('[data-pin="second"] code')).to_have_text(again["label"])


def test_a_dense_model_offers_no_expert_axis(visit):
    page = visit.go("/plan", **QUESTION)
    options = page.locator('[data-name="axis-ep"] option')
    expect(options).to_have_count(1)


@pytest.mark.parametrize(("schedule", "pp", "m"), [("1f1b", 4, 8), ("interleaved", 16, 96)])
def test_an_operation_of_a_pipeline_is_pointed_at_however_many_there_are(
    visit, api, schedule, pp, m
):
    data = api.get("/api/sim/pipeline", params={"schedule": schedule, "pp": pp, "m": m}).json()[
        "data"
    ]
    page = visit.go("/sim/pipeline", schedule=schedule, pp=pp, m=m)
    drawing = page.locator(".gantt svg")
    drawing.scroll_into_view_if_needed()
    op, box = data["op"], drawing.bounding_box()
    view = drawing.evaluate("svg => [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height]")
    scale, row = (
        (view[0] - 38) / data["makespan"],
        (view[1] - 26) / pp * (box["height"] / view[1]),
    )
    longest = max(range(len(op["rank"])), key=lambda i: (op["end"][i] - op["start"][i], op["rank"][i]))  # fmt: skip
    at = 34 + (op["start"][longest] + op["end"][longest]) / 2 * scale
    page.mouse.move(
        box["x"] + at * box["width"] / view[0], box["y"] + row * (op["rank"][longest] + 0.5)
    )
    expect(page.locator('[data-fact="pointed"]')).to_contain_text(
        f"Rank {op['rank'][longest]}: backward of micro-batch {op['micro'][longest] + 1}, stage {op['stage'][longest]}"
    )
    # What is not of that micro-batch steps back, and a path holds each operation once.
    pieces = drawing.locator("path").evaluate_all(
        "all => all.map(path => [path.classList[0], path.getAttribute('d').split('M').length - 1])"
    )
    same = sum(1 for micro in op["micro"] if micro == op["micro"][longest])
    assert sum(many for state, many in pieces if state == "done") == same
    assert sum(many for state, many in pieces if state == "back") == len(op["micro"]) - same
    page.mouse.move(0, 0)
    expect(page.locator('[data-fact="pointed"]')).to_contain_text("Point at an operation")


def test_a_slider_asks_for_one_schedule_and_writes_no_hidden_table(visit):
    """All schedules and the four on one scale follow once the hand rests."""
    page = visit.go("/sim/pipeline", pp=16, m=96)
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: "/api/" in request.url and asked.append(request.url))
    page.evaluate("""() => {
      const inputs = [...document.querySelectorAll('label.field')]
      const slider = inputs.find(one => one.querySelector('.head > span')?.textContent === 'Micro-batches').querySelector('input')
      slider.value = Number(slider.value) + 1
      slider.dispatchEvent(new Event('input', { bubbles: true }))
    }""")
    expect(page.locator(".summary")).to_contain_text("128 micro-batches")
    assert "compare=0" in asked[0], asked  # the others may have followed before this line runs
    expect(page.locator(".one h3", has_text="GPipe")).to_contain_text("429.0 forwards")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    quick = [url for url in asked if "compare=0" in url]
    # On a loaded machine the hand may rest before the first answer is there: that one is then asked for again.
    assert len(set(quick)) == 4 and len(asked) == len(quick) + 1, asked
    assert page.locator("details tbody tr").count() == 0
