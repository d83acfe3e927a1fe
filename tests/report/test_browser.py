"""The page as people meet it: in a real browser, light and dark, by mouse and keyboard, and while a run goes on."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.report import page as report
from fedkin.results.history import History
from tests.conftest import LAST_RESORT
from tests.ports import free_port
from tests.report.conftest import METHODS

pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")

from playwright.sync_api import expect

pytestmark = pytest.mark.processes
SECTIONS = ("result", "learning", "relation", "benefit", "clients", "costs", "made")
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=\"window.hacked = 1\">",
    "{{script}} '\"&amp; \\u003c/b>",
    "javascript:alert(1)\u2028é漢",
]  # fmt: skip


@pytest.fixture(scope="module")
def address(comparison, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    return report.write([comparison], out, bibtex="@misc{fedkin}").as_uri()


class Opened:
    """A tab, with everything that it complained about and asked for."""

    def __init__(self, browser, address: str, *, width: int, height: int, dark: bool, clock: bool) -> None:
        self.tab = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            is_mobile=width < 600,
        )
        self.tab.set_default_timeout(LAST_RESORT)
        self.address, self.complaints, self.requests = address, [], []
        self.tab.on("console", self._logged)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        if clock:
            self.tab.clock.install(time=0)
        self.tab.goto(address)
        if clock:  # from now on time passes when the test says so
            self.tab.clock.pause_at(3_600_000)

    def _logged(self, message) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(message.text)

    def run(self, code: str):
        """The value of an expression in the page."""
        return self.tab.evaluate(code)

    def find(self, selector: str):
        return self.tab.locator(selector)


@pytest.fixture
def opened(browser):
    """Opens pages. Afterwards checks that none of them complained or asked for anything outside."""
    pages = []

    def opened(address, *, width=1280, height=900, dark=False, clock=False):
        pages.append(Opened(browser, address, width=width, height=height, dark=dark, clock=clock))
        return pages[-1]

    yield opened
    for page in pages:
        page.run("0")  # what the page logged before this has arrived by now
        assert page.complaints == []
        start = page.address
        if not start.startswith("file:"):
            start = re.match(r"http://127\.0\.0\.1:\d+/", start)[0]
        assert [url for url in page.requests if not url.startswith((start, "data:,"))] == []
        page.tab.context.close()


def choose(page, method: str) -> None:
    page.find("#relation .choice").first.get_by_role("button", name=method, exact=True).click()


def slide(page, round: int) -> None:
    page.find("#round").fill(str(round))


def table(page, selector: str) -> list[list[str]]:
    """The text of a table; the one behind `Show the numbers` is made when that is opened."""
    box = page.find(selector)
    if box.evaluate("box => box.tagName") == "DETAILS":
        box.evaluate("box => { box.open = true; }")
        box.locator("table").wait_for()
    rows: list[list[str]] = box.evaluate(
        "box => [...box.querySelectorAll('tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


@pytest.mark.parametrize(("selector", "shown"), [("#result", "#headline"), ("#benefit details", "#benefit details")])
def test_a_table_can_be_saved_as_csv_and_latex(opened, address, selector, shown):
    page = opened(address)
    shown = table(page, shown)
    box = page.find(selector).first

    def saved(name: str) -> tuple[str, str]:
        with page.tab.expect_download() as found:
            box.get_by_role("button", name=f"Save as {name}").click()
        return found.value.suggested_filename, Path(found.value.path()).read_text()

    name, text = saved("CSV")
    lines = list(csv.reader(text.splitlines()))
    assert name == "table.csv"
    assert [[cell.replace("−", "-").replace("\u200b", "") for cell in row] for row in shown] == lines
    name, text = saved("LaTeX")
    lines = text.splitlines()
    assert name == "table.tex"
    assert lines[:2] == [rf"\begin{{tabular}}{{l{'r' * (len(shown[0]) - 1)}}}", r"\toprule"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert len(lines) == len(shown) + 5
    assert not re.search(r"(?<!\\)[%_]", text), "what LaTeX would take for its own is escaped"


def rate(text: str) -> float:
    return float(text.split("%")[0].replace("−", "-")) / 100


def test_every_method_and_panel_is_drawn(opened, address):
    page = opened(address)
    for name in METHODS:
        choose(page, name)
        for section in SECTIONS:
            text = page.run(f"document.querySelector('#{section} .body').textContent")
            assert len(text) > 40, section
            assert "could not be drawn" not in text
        assert page.run("document.querySelectorAll('#relation svg.graph .node').length") == 8
    titles = page.run("[...document.querySelectorAll('#relation h3')].map(h => h.textContent)")
    assert "Dendrogram and cut" in titles
    assert any("Discrepancy of each layer" in title for title in titles)
    named = page.run("[...document.querySelectorAll('[role=img]')].every(e => e.getAttribute('aria-label'))")
    assert named, "every chart has a text alternative"


@pytest.mark.parametrize(
    ("method", "panels"),
    [
        ("fedcedar", ["Clusters over rounds", "Graph between cluster centers", "Does it find similar clients?"]),
        ("pflic", ["Identities over rounds", "Participation and utility"]),
        ("pfedgat", ["Attention of each head"]),
        ("dcpfl", ["Dendrogram and cut", "Training loss and splits", "Radius of curvature r(t)"]),
    ],
)
def test_each_system_has_its_panels(opened, address, method, panels):
    page = opened(address)
    choose(page, next(name for name in METHODS if name.startswith(method)))
    titles = page.run("[...document.querySelectorAll('#relation h3')].map(h => h.textContent)")
    assert set(panels) <= set(titles)


def test_the_slider_changes_matrix_and_graph(opened, address):
    page = opened(address, clock=True)
    choose(page, "pfedgat-v2")
    seen = {}
    for round in (1, 5, 8):
        slide(page, round)
        assert page.run("document.getElementById('round-said').textContent") == f"Round {round} of 8"
        assert page.run("document.getElementById('matrix').dataset.round") == str(round)
        seen[round] = (
            page.run("document.getElementById('matrix').toDataURL()"),
            page.run("[...document.querySelectorAll('.graph .node')].map(n => n.getAttribute('cx')).join()"),
        )
    assert len({matrix for matrix, _ in seen.values()}) == 3
    assert len({graph for _, graph in seen.values()}) == 3
    slide(page, 1)
    play = page.find("#play")
    play.click()
    page.tab.clock.run_for(1500)  # a round lasts 0.7 s
    expect(page.find("#round-said")).to_have_text("Round 3 of 8")
    play.click()
    expect(play).to_have_text("▶ Play")
    page.tab.clock.run_for(5000)
    expect(page.find("#round-said")).to_have_text("Round 3 of 8")


def test_the_round_can_be_moved_by_keyboard(opened, address):
    page = opened(address)
    page.find("#round").focus()
    for _ in range(3):
        page.tab.keyboard.press("ArrowLeft")
    assert page.run("document.getElementById('round-said').textContent") == "Round 5 of 8"
    assert page.run("document.activeElement.id") == "round", "the focus stays"
    for control in ("Method 1", "order by", "stretch colors to the range"):
        page.run(f"document.querySelector('#relation [data-control=\"{control}\"]').focus()")
        used = "dispatchEvent(new Event('change'))" if control == "order by" else "click()"
        page.run(f"document.activeElement.{used}")
        assert page.run("document.activeElement.dataset.control") == control, "also on what was drawn anew"


def test_hover_and_arrow_keys_show_the_client(opened, address):
    page = opened(address)
    choose(page, "fedavg")
    tip = page.find("#tip")
    page.find('.graph .node[data-client="3"]').hover()
    expect(tip).to_be_visible()
    text = tip.text_content()
    assert "client 3" in text
    assert "training examples" in text
    assert "hidden group" in text
    page.tab.mouse.move(2, 2)
    expect(tip).to_be_hidden()
    page.find("#matrix").hover()
    expect(tip).to_have_text(re.compile("takes from client|keeps of its own"))
    page.find("#gain-bars .target").first.hover()
    expect(tip).to_contain_text("gain")
    page.find(".graph").focus()
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowRight")
    expect(tip).to_be_visible()
    assert "client 1" in tip.text_content()
    assert "client 1" in page.find("#said").text_content(), "said to those who do not see it"
    page.tab.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_a_page_that_scrolls_under_a_resting_pointer_leaves_the_tooltip_of_the_keyboard_open(opened, address):
    """Focus scrolls the page. The scroll event comes after the next key, and pointer events without a movement too."""
    page = opened(address)
    tip, lit = page.find("#tip"), page.find(".graph g line")
    bar = page.find("#gain-bars .target").first
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    resting = int(box["x"] + box["width"] / 2), int(box["y"] + box["height"] / 2)
    page.tab.mouse.move(*resting)
    expect(tip).to_be_visible()
    page.run("addEventListener('scroll', () => { window.scrolled = true; })")
    page.find(".graph").focus()
    page.tab.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("client 0")
    page.tab.wait_for_function("window.scrolled")
    assert bar.bounding_box() != box, "the page did not scroll: the test shows nothing"
    page.tab.mouse.move(*resting)  # an event of the same position, on what lies there now
    expect(tip).to_contain_text("client 0")
    expect(lit).not_to_have_count(0)
    page.tab.mouse.wheel(0, 200)
    expect(tip).to_be_hidden()
    expect(lit).to_have_count(0)


def test_a_tooltip_closes_with_what_it_highlights(opened, address):
    page = opened(address)
    choose(page, "fedavg")
    tip, lit = page.find("#tip"), page.find(".graph g line")
    for close in (
        lambda: page.tab.mouse.move(2, 2),
        lambda: page.tab.mouse.wheel(0, 100),
        lambda: page.tab.keyboard.press("Escape"),
    ):
        page.find('.graph .node[data-client="3"]').hover()
        expect(tip).to_be_visible()
        expect(lit).not_to_have_count(0)
        close()
        expect(tip).to_be_hidden()
        expect(lit).to_have_count(0)
        page.tab.mouse.move(3, 3)


def luminance(color: str) -> float:
    rgb = np.array([int(v) for v in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(opened, address, dark):
    page = opened(address, dark=dark)

    def colors():
        found = [page.run(f"getComputedStyle(document.body).{p}") for p in ("backgroundColor", "color")]
        found.append(page.run("getComputedStyle(document.querySelector('.note')).color"))
        return [luminance(c) for c in found]

    def contrast(a, b):
        return (max(a, b) + 0.05) / (min(a, b) + 0.05)

    paper, ink, soft = colors()
    assert (paper < ink) == dark
    assert contrast(paper, ink) > 7
    assert contrast(paper, soft) > 4.5
    matrix = page.run("document.getElementById('matrix').toDataURL()")
    page.find("#theme").click()
    paper, ink, soft = colors()
    assert (paper > ink) == dark, "the button switches"
    assert contrast(paper, soft) > 4.5
    assert page.run("document.getElementById('matrix').toDataURL()") != matrix, "charts follow"


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_it_fits_the_screen(opened, address, width):
    page = opened(address, width=width)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_numbers_shown_are_those_of_the_history(opened, address, comparison):
    page = opened(address)
    histories = {name: History.load(comparison / name / "seed-0") for name in METHODS}
    shown = {row[0].replace("\u200b", ""): row for row in table(page, "#headline")[1:]}
    last = {name: h.values("personal", round=8) for name, h in histories.items()}
    for name in METHODS:
        assert rate(shown[name][1]) == pytest.approx(np.mean(list(last[name].values())), abs=6e-4)
        assert rate(shown[name][3]) == pytest.approx(np.std(list(last[name].values())), abs=6e-4)
    # learning curves, every round
    for row in table(page, "#learning details")[1:]:
        for name, cell in zip(METHODS, row[1:]):
            round, history = int(row[0]), histories[name]
            values = history.values("personal", round=round)
            values = values or history.values("personal", round=round, scope="participants")
            assert rate(cell) == pytest.approx(np.mean(list(values.values())), abs=6e-5)
    # gains, every client
    choose(page, "pfedgat-v2")
    gains = table(page, "#benefit details")[1:]
    assert len(gains) == 8
    for client, _, base, value, gain in gains:
        number = int(client.split()[1])
        a, b = last["pfedgat-v2"][number], last["local"][number]
        assert [rate(value), rate(base)] == pytest.approx([a, b], abs=6e-5)
        assert float(gain.replace("−", "-")) / 100 == pytest.approx(a - b, abs=6e-5)
    # the mixing matrix, two rounds
    for round in (2, 8):
        slide(page, round)
        matrix = next(r.value for r in histories["pfedgat-v2"].select("mixing", round=round))
        cells = table(page, "#relation figure:nth-of-type(2) details")[1:]
        assert [[rate(c) for c in row[1:]] for row in cells] == [pytest.approx(line, abs=1.1e-4) for line in matrix]
    # the clients
    for row in table(page, "#clients details")[1:]:
        number = int(row[0].split()[1])
        labels = histories["local"].values("labels", round=0, scope="")[number]
        assert [int(c) for c in row[5:]] == labels
        assert int(row[2]) == histories["local"].values("train_examples", round=0, scope="")[number]


def test_classes_and_clients_have_their_names(opened, hospitals, address, tmp_path):
    page = opened(report.write([hospitals], tmp_path / "report.html").as_uri())
    words = "[...document.querySelectorAll('#bubbles text')].map(text => text.textContent)"
    assert page.run(words) == ["healthy", "ill", "north", "south", "west"]
    assert table(page, "#clients details")[0][5:] == ["label healthy", "label ill"]
    page.find("#bubbles g").first.hover()
    assert "healthy" in page.find("#tip svg").get_attribute("aria-label")
    digits = opened(address)  # they have numbers only
    shown = digits.run(words)
    assert (shown[:10], sorted(shown[10:])) == ([*map(str, range(10))], [*map(str, range(8))])


def test_the_first_method_shown_learns_from_others(opened, hospitals, tmp_path):
    page = opened(report.write([hospitals], tmp_path / "report.html").as_uri())
    expect(page.find("#result tr.chosen")).to_contain_text("fedavg")  # and not local, which is the first


def test_the_buttons_below_a_table_keep_away_from_what_follows(opened, hospitals, tmp_path):
    page = opened(report.write([hospitals], tmp_path / "report.html").as_uri())
    page.run("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    page.find("#clients details .savers").wait_for()
    gaps = page.run(
        """[...document.querySelectorAll('.savers')].map(box => {
            const own = box.getBoundingClientRect(), next = box.nextElementSibling?.getBoundingClientRect();
            const above = own.top - box.previousElementSibling.getBoundingClientRect().bottom;
            return [above, next ? next.top - own.bottom : 99];
        })"""
    )
    assert len(gaps) > 3
    assert min(above for above, _ in gaps) >= 6
    assert min(below for _, below in gaps) >= 12


def test_hostile_names_are_shown_and_not_run(opened, tmp_path):
    rng = np.random.default_rng(0)
    arrays = fedkin.from_arrays(
        rng.normal(size=(80, 4)).astype(np.float32), rng.integers(0, 2, 80), client=[HOSTILE[i % 4] for i in range(80)]
    )
    fed = fedkin.federate(arrays, partition="by_group")
    fedkin.run("fedavg", fed, rounds=2, out=tmp_path, label=HOSTILE[0], engine="serial")
    page = opened(report.write([tmp_path], bibtex=HOSTILE[1]).as_uri())
    shown = {row[0] for row in table(page, "#clients details")[1:]}
    assert shown == set(HOSTILE)
    for node in range(4):
        page.find(f'.graph .node[data-client="{node}"]').hover()
        expect(page.find("#tip")).to_be_visible()
        assert any(name in page.find("#tip").text_content() for name in HOSTILE)
    assert HOSTILE[0] in page.run("document.getElementById('title').textContent")
    assert page.run("document.getElementById('bibtex').textContent") == HOSTILE[1]
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.querySelectorAll('img').length") == 0
    # and should a mark-up ever get in, the policy does not let it act
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        " document.body.append(s); })()"
    )
    assert page.run("typeof window.hacked") == "undefined"
    assert "Content Security Policy" in page.complaints[0]
    page.complaints.clear()


def test_a_history_that_lacks_what_is_optional(opened, comparison, tmp_path):
    folder = comparison / METHODS[-1] / "seed-0"
    kept = ("personal", "bytes_down", "bytes_up", "train_examples")
    lines = [row for row in (folder / "history.jsonl").read_text().splitlines() if json.loads(row)["metric"] in kept]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    config = json.loads((folder / "config.json").read_text())
    for part in ("environment", "method", "training", "model", "fingerprint"):
        del config[part]
    (tmp_path / "config.json").write_text(json.dumps(config))
    page = opened(report.write([tmp_path]).as_uri())
    for section, text in (
        ("relation", "recorded no mixing matrix"),
        ("clients", "no labels"),
        ("made", "No command was recorded"),
    ):
        assert text in page.run(f"document.querySelector('#{section} .body').textContent")
    (tmp_path / "history.jsonl").write_text(lines[0] + "\n")  # a run that has hardly begun
    page = opened(report.write([tmp_path]).as_uri())
    assert "No results yet" in page.run("document.querySelector('#result').textContent")


def test_a_seed_that_is_not_finished_is_named_and_not_counted(opened, comparison, tmp_path):
    folder = comparison / "fedavg" / "seed-0"
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    for seed, last in ((0, 8), (1, 2)):
        config = json.loads((folder / "config.json").read_text())
        config["options"]["seed"] = seed
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "config.json").write_text(json.dumps(config))
        kept = [line for line in lines if json.loads(line)["round"] <= last]
        (tmp_path / str(seed) / "history.jsonl").write_text("".join(kept))
    page = opened(report.write([tmp_path]).as_uri())
    mean = np.mean(list(History.load(folder).values("personal", round=8).values()))
    assert rate(table(page, "#headline")[1][1]) == pytest.approx(mean, abs=6e-4)
    text = page.run("document.getElementById('result').textContent")
    assert "seed 1 is at round 2 of 8. Unfinished runs are not counted" in text


def test_a_hundred_clients_and_rounds_stay_light(opened, comparison, tmp_path):
    rng = np.random.default_rng(0)
    history = History(tmp_path / "history.jsonl")
    for client in range(100):
        history.add(0, client, "train_examples", int(rng.integers(20, 400)))
        history.add(0, client, "labels", rng.integers(0, 50, 10).tolist())
    for round in range(1, 101):
        for client in range(100):
            for metric in ("personal", "received", "personal_loss"):
                history.add(round, client, metric, float(rng.random()), "all")
            for metric in ("bytes_down", "bytes_up", "flops"):
                history.add(round, client, metric, 1000)
        history.add(round, None, "compute_seconds", 1.0)
        history.add(round, None, "communication_seconds", 1.0)
        history.add(round, None, "clusters", rng.integers(0, 5, 100).tolist())
        history.add(round, None, "mixing", rng.dirichlet(np.ones(100), 100).round(6).tolist())
    history.close()
    config = json.loads((comparison / "fedavg" / "seed-0" / "config.json").read_text())
    config["options"]["rounds"] = 100
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = report.write([tmp_path])
    assert path.stat().st_size < 10e6
    page = opened(path.as_uri())
    assert page.run("document.querySelectorAll('#relation svg.graph .node').length") == 100
    assert page.run("document.querySelectorAll('*').length") < 10_000
    # What takes long is to lay the page out again and again. Seconds would tell how busy the machine is.
    devtools = page.tab.context.new_cdp_session(page.tab)
    devtools.send("Performance.enable")
    page.tab.reload()
    spent = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
    assert 0 < spent["LayoutCount"] < 50


@pytest.mark.timeout(1800)  # the last resort: it starts four processes, one after the other
def test_watch_shows_a_run_while_it_goes_on(opened, spawn, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    port = free_port()

    def command(rounds, *more):
        flags = f"--clients 5 --rounds {rounds} --epochs 4 --workers 1 --out {out} --quiet".split()
        return [sys.executable, "-m", "fedkin", "run", "fedavg", *flags, *more]

    def watched():
        words = [sys.executable, "-m", "fedkin", "watch", str(out), "--port", str(port)]
        process = spawn(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith(f"http://127.0.0.1:{port}/ ")  # it listens
        return process

    def end(process):
        process.terminate()
        process.wait()

    server = watched()
    page = opened(f"http://127.0.0.1:{port}/")
    live = page.find("#live")
    assert "No run in" in page.run("document.body.textContent")
    going = spawn(command(5000), stdout=subprocess.DEVNULL)
    expect(live).to_have_text(re.compile(r"^round \d+ of 5000$"))
    page.run("window.unbroken = true")
    slider = page.find("#round")
    first = slider.get_attribute("max")
    expect(slider).not_to_have_attribute("max", first)
    assert int(slider.get_attribute("max")) > int(first), "the slider grows with the run"
    expect(live).to_have_text(re.compile(r"^round \d+ of 5000$"))
    assert page.run("window.unbroken"), "and the page was not loaded anew"
    end(going)
    assert page.complaints == []
    end(server)
    expect(live).to_contain_text("does not answer")
    watched()
    expect(live).to_have_text(re.compile(r"^round \d+ of 5000$"))
    unanswered = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")  # the server ended meanwhile
    assert all(any(code in c for code in unanswered) for c in page.complaints), "the browser logs what got no answer"
    page.complaints.clear()
    subprocess.run(command(3, "--fresh"), stdout=subprocess.DEVNULL, check=True)
    expect(live).to_have_text("finished")
    expect(slider).to_have_attribute("max", "3")
    page.tab.goto("about:blank")  # or it would go on asking a server that is gone


def test_a_regression_is_shown_in_its_own_metric_with_an_answer_for_each_site(opened, tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("north <b>", 80), ("south", 70)):
        x = rng.normal(size=(count, 3)).astype("float32")
        np.savez(tmp_path / f"{name}.npz", x=x, y=(x @ [1.0, -2.0, 0.5] + 3).astype("float32"))
    fed = fedkin.federate(fedkin.data.from_folder(tmp_path, task="regression"))
    made = fedkin.compare(["local", "fedavg"], fed, rounds=3, engine="serial", out=tmp_path / "out")
    page = opened(report.write([tmp_path / "out"], tmp_path / "page.html").as_uri())
    expect(page.find("#answers th").nth(1)).to_have_text(f"north <b> (n = {made.sites[0].test_examples})")
    expect(page.find("#advice li")).to_have_text([site.advice for site in made.sites])
    text = page.find("#result").inner_text()
    assert "RMSE on each client's own test examples" in text
    assert "Lower is better." in text
    assert "ccuracy" not in text
    personal = {line.method: line.personal for line in made.lines}
    best = page.find("#headline td.best").nth(0).inner_text()
    assert float(best.replace("−", "-")) == pytest.approx(min(personal.values()), rel=1e-3)
    gain = personal["local"] - personal["fedavg"]
    assert page.run("gains(byName('fedavg'), byName('local'))[0].gain") == pytest.approx(
        max(made.sites[i].cells["fedavg"].gain for i in (0, 1)), abs=1e-4
    )
    assert page.run("mean(gains(byName('fedavg'), byName('local')).map((g) => g.gain))") == pytest.approx(
        gain, abs=1e-4
    )
