"""The one style sheet of the HTML report; it follows the reader's choice of light or dark."""

__all__ = ["STYLE"]

STYLE = """\
:root {
  --page: #fbfbfa;
  --ink: #1c2024;
  --quiet: #60666e;
  --line: #e3e5e8;
  --accent: #0072b2;
  --card: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171a;
    --ink: #e4e6e9;
    --quiet: #9aa1aa;
    --line: #2c3036;
    --accent: #56b4e9;
    --card: #1c1f23;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0;
  background: var(--page);
  color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.75rem 0 0.5rem; }
p { margin: 0 0 0.75rem; color: var(--quiet); max-width: 46rem; }
li { overflow-wrap: anywhere; }
.headline {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  gap: 0.75rem;
  margin: 0;
}
.headline div {
  display: flex;
  flex-direction: column-reverse;
  justify-content: flex-end;
  padding: 0.8rem 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 8px;
}
.headline dt { font-size: 0.8rem; line-height: 1.3; color: var(--quiet); }
.headline dd { margin: 0; font-size: 1.35rem; font-weight: 600; white-space: nowrap; }
.wide { overflow-x: auto; }
.chart { margin: 0.5rem 0 1rem; }
table { border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 1.1rem 0.35rem 0; text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; white-space: nowrap; }
thead th { border-bottom: 1px solid var(--line); }
tbody tr + tr td { border-top: 1px solid var(--line); }
td.text { white-space: nowrap; }
th.number, td.number { text-align: right; white-space: nowrap; }
td.prose { min-width: 14rem; overflow-wrap: anywhere; }
code { font: 0.8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
td.name { min-width: 12rem; }
td.name code { overflow-wrap: anywhere; }
summary { cursor: pointer; }
details > code { display: block; max-width: 46rem; margin: 0.3rem 0; color: var(--quiet); }
.chart .xtick text, .chart .ytick text, .chart .cbaxis text, .chart .gtitle,
.chart .xtitle, .chart .ytitle, .chart .bartext { fill: var(--ink) !important; }
"""
