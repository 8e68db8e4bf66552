"""The report's charts as Vega-Lite specifications. Colours are the page's CSS variables, so that they follow its theme.

The data are not in the specifications, only named there (SPLITS, EPOCHS, EVENTS): Altair would check each row.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from tidemark.jobs.report.records import Record

Spec = dict[str, Any]

SPLITS, EPOCHS, EVENTS = "splits", "epochs", "events"
FEW = 80
"""Up to this number of points, points are drawn large."""

_CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, Segoe UI, Helvetica Neue, DejaVu Sans, sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
}
_BYTES = (
    "format(datum.value / (datum.value >= 1e9 ? 1e9 : datum.value >= 1e6 ? 1e6 : datum.value >= 1e3 ? 1e3 : 1), '.4~g')"
)
_UNIT = "(datum.value >= 1e9 ? ' GB' : datum.value >= 1e6 ? ' MB' : datum.value >= 1e3 ? ' kB' : ' B')"
BYTES_LABEL = f"{_BYTES} + {_UNIT}"


def splits_chart(records: Sequence[Record]) -> Spec:
    """Splits along the key and their watermarks along the log. With several tables there is a menu to choose one."""
    tables = list(dict.fromkeys(record["table"] for record in records))
    chosen = alt.param(name="chosen", value=tables[0], bind=alt.binding_select(options=tables, name="Table "))
    whole_numbers = "datum.value % 1 ? '' : datum.label"
    axis = alt.Axis(grid=False, tickCount=10, format=",~r", labelExpr=whole_numbers, labelOverlap=True)
    x = alt.X("left:Q", title="splits in key order", axis=axis)
    x = x.scale(nice=False, padding=0)
    left = _left(labelExpr=BYTES_LABEL, tickCount=5)
    tooltip = [
        alt.Tooltip("range:N", title="split"),
        alt.Tooltip("splits:Q", title="splits", format=","),
        alt.Tooltip("rows:Q", title="rows", format=","),
        alt.Tooltip("low_text:N", title="low"),
        alt.Tooltip("high_text:N", title="high"),
        alt.Tooltip("replayed:Q", title="changes replayed", format=","),
        alt.Tooltip("gap:Q", title="bytes of log in the gap", format=","),
    ]

    def part(colour: str, bottom: str, top: str) -> Any:
        y = alt.Y(f"{bottom}:Q", title="log since the job's start", axis=left, scale=alt.Scale(nice=False))
        chart = alt.Chart().mark_rect(color=colour, stroke="var(--card)", strokeWidth=0.5)
        return chart.encode(x=x, x2="right:Q", y=y, y2=alt.Y2(f"{top}:Q"), tooltip=tooltip)

    high = alt.Chart().mark_rule(color="var(--text)", strokeWidth=2.5)
    high = high.encode(x=x, x2="right:Q", y=alt.Y("high:Q"), tooltip=tooltip)
    parts = (
        part("var(--seen)", "zero", "low"),
        part("var(--replayed)", "low", "high"),
        part("var(--gap-fill)", "high", "top"),
    )
    chart = alt.layer(*parts, high, data=alt.NamedData(SPLITS))
    chart = chart.transform_calculate(zero="0")
    if len(tables) > 1:
        chart = chart.add_params(chosen).transform_filter("datum.table == chosen")
    return _spec(chart, height=300)


def timeline_charts(epochs: Sequence[Record], events: Sequence[Record]) -> dict[str, Spec]:
    """Charts below each other on one time axis: events, throughput, lag, log behind, duration of epochs."""
    times = [record[name] for record in epochs for name in ("begin", "end")]
    first, last = min(times), max(times)
    shown = [event for event in events if first <= event["at"] <= last] if first < last else []
    first, last = min([first, *(e["at"] for e in shown)]), max([last, first + 1000])
    domain = [first, last]
    few = len(epochs) <= FEW
    charts = {
        "rate": _rates(domain),
        "lag": _line("lag", "lag, seconds", "var(--replayed)", domain, few=few),
        "behind": _line("behind", "log behind", "var(--accent)", domain, few=few, label=BYTES_LABEL),
        "seconds": _line("seconds", "seconds per epoch", "var(--muted)", domain, few=few),
    }
    known = {name for name in charts if any(epoch[name] is not None for epoch in epochs)}
    specs = {name: _spec(chart, height=96) for name, chart in charts.items() if name in known}
    if shown:
        specs = {"events": _spec(_events(domain), height=44), **specs}
    return specs


def _left(**settings: Any) -> alt.Axis:
    """The y axis, equally wide in all charts, so that their time axes are aligned."""
    return alt.Axis(**{"minExtent": 58, "maxExtent": 58, "titlePadding": 8, "tickCount": 3, **settings})


def _time(field: str, domain: list[int], *, labels: bool = True) -> alt.X:
    days = (domain[1] - domain[0]) / 86_400_000
    text = "%H:%M:%S" if days < 0.02 else "%H:%M" if days < 1 else "%b %d %H:%M" if days < 8 else "%Y-%m-%d"
    axis = alt.Axis(
        title=None, grid=False, labels=labels, ticks=labels, domain=labels, tickCount=8, labelOverlap=True, format=text
    )
    return alt.X(f"{field}:T", axis=axis, scale=alt.Scale(type="utc", domain=domain, nice=False))


_EPOCH_TOOLTIP = [
    alt.Tooltip("epochs:N", title="epoch"),
    alt.Tooltip("phase:N", title="phase"),
    alt.Tooltip("begin_text:N", title="from"),
    alt.Tooltip("rows:Q", title="rows", format=","),
    alt.Tooltip("changes:Q", title="changes", format=","),
    alt.Tooltip("filtered:Q", title="skipped by the gap filter", format=","),
    alt.Tooltip("transactions:Q", title="transactions", format=","),
    alt.Tooltip("rate:Q", title="per second", format=",.0f"),
    alt.Tooltip("seconds:Q", title="seconds", format=",.2f"),
    alt.Tooltip("lag:Q", title="lag, seconds", format=",.1f"),
    alt.Tooltip("behind:Q", title="bytes of log behind", format=","),
    alt.Tooltip("reconnects:Q", title="reconnects"),
]


def _rates(domain: list[int]) -> Any:
    names = ["rows copied", "changes followed"]
    colour = alt.Color("what:N", scale=alt.Scale(domain=names, range=["var(--seen)", "var(--gap)"]), legend=None)
    y = alt.Y("rate:Q", title="per second", axis=_left(format="~s"))
    data = alt.Chart(alt.NamedData(EPOCHS))
    columns = data.mark_rect().encode(
        x=alt.X("begin:T"), x2="until:T", y=y, y2=alt.Y2(datum=0), color=colour, tooltip=_EPOCH_TOOLTIP
    )
    axis = data.mark_point(opacity=0).encode(x=_time("begin", domain))  # with x2, Vega-Lite warns of its own domain
    return alt.layer(columns, axis)


def _line(field: str, title: str, colour: str, domain: list[int], *, few: bool, label: str | None = None) -> Any:
    axis = _left(format=",.3~r") if label is None else _left(labelExpr=label)
    known = alt.Chart(alt.NamedData(EPOCHS)).transform_filter(f"isValid(datum.{field})")
    y = alt.Y(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(domainMin=0))
    line = known.mark_line(color=colour, strokeWidth=1.5).encode(x=_time("end", domain), y=y)
    size = 26 if few else 9
    points = known.mark_circle(color=colour, size=size, opacity=1).encode(
        x="end:T", y=f"{field}:Q", tooltip=_EPOCH_TOOLTIP
    )
    return alt.layer(line, points)


def _events(domain: list[int]) -> Any:
    kinds = {"start": "var(--good)", "end": "var(--muted)", "reconnect": "var(--gap)", "warning": "var(--gap)"}
    kinds["error"] = "var(--bad)"
    shapes = ["triangle-right", "square", "diamond", "triangle-up", "cross"]
    return (
        alt.Chart(alt.NamedData(EVENTS))
        .transform_calculate(row="''")
        .transform_filter(f"datum.at >= {domain[0]} && datum.at <= {domain[1]}")
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            x=_time("at", domain, labels=False),
            y=alt.Y("row:N", title="events", axis=_left(labels=False, ticks=False, domain=False)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=None),
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=list(kinds), range=shapes), legend=None),
            tooltip=[
                alt.Tooltip("at_text:N", title="at"),
                alt.Tooltip("event:N"),
                alt.Tooltip("text:N"),
            ],
        )
    )


def _spec(chart: Any, *, height: int) -> Spec:
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    spec["config"] = _CONFIG
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec
