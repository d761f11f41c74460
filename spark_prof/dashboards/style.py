"""The one style sheet of the HTML report: light or dark as the reader has it, phone, paper."""

_COLORS = """\
:root {
  --page: #fbfbfa;
  --ink: #1c2024;
  --quiet: #60666e;
  --line: #e3e5e8;
  --accent: #0072b2;
  --card: #ffffff;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #15171a;
    --ink: #e4e6e9;
    --quiet: #9aa1aa;
    --line: #2c3036;
    --accent: #56b4e9;
    --card: #1c1f23;
  }
}
"""

_PAGE = """\
* { box-sizing: border-box; }
html { text-size-adjust: 100%; -webkit-text-size-adjust: 100%; }
body {
  margin: 0;
  background: var(--page);
  color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { min-width: 0; max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.75rem 0 0.5rem; overflow-wrap: anywhere; }
section { scroll-margin-top: 1.5rem; }
p { margin: 0 0 0.75rem; color: var(--quiet); max-width: 46rem; overflow-wrap: anywhere; }
li { overflow-wrap: anywhere; }
nav {
  position: sticky;
  top: 0;
  z-index: 1;
  overflow-x: auto;
  scrollbar-width: none;
  background: var(--page);
  border-bottom: 1px solid var(--line);
  font-size: 0.85rem;
}
nav ol { display: flex; margin: 0; padding: 0 1.25rem; list-style: none; }
nav li { flex: none; }
nav a {
  display: block;
  padding: 0.5rem 1.1rem 0.5rem 0;
  color: var(--quiet);
  text-decoration: none;
}
nav a:hover, nav a:focus { color: var(--accent); text-decoration: underline; }
.headline {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  gap: 0.75rem;
  margin: 0;
}
.headline div {
  min-width: 0;
  display: flex;
  flex-direction: column-reverse;
  justify-content: flex-end;
  padding: 0.8rem 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 8px;
}
.headline dt { font-size: 0.8rem; line-height: 1.3; color: var(--quiet); }
.headline dd { margin: 0; font-size: 1.35rem; font-weight: 600; }
.headline :is(dt, dd), .caveat { overflow-wrap: anywhere; }
.caveat { font-weight: 600; }
"""

_TABLES = """\
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 1.1rem 0.35rem 0; text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; white-space: nowrap; }
thead th { border-bottom: 1px solid var(--line); }
tbody tr + tr td { border-top: 1px solid var(--line); }
td.text { white-space: nowrap; }
th.number, td.number { text-align: right; white-space: nowrap; }
.broad { font-size: 0.8rem; }
.broad :is(th, td) { padding-right: 0.75rem; }
.broad td.text { min-width: 5.5rem; white-space: normal; }
td.prose { min-width: 14rem; overflow-wrap: anywhere; }
code { font: 0.8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
td.name { min-width: 15rem; }
td.name code { overflow-wrap: anywhere; }
summary { cursor: pointer; }
details > code { display: block; max-width: 46rem; margin: 0.3rem 0; color: var(--quiet); }
"""

_FIGURES = """\
.chart { margin: 0.5rem 0 1rem; }
figcaption { font-size: 0.93rem; overflow-wrap: anywhere; }
.chart text:not(.hoverlayer text) { fill: var(--ink) !important; }
"""

_BROAD = """\
@media screen and (min-width: 1360px) {
  body:has(nav) {
    display: grid;
    grid-template-columns: minmax(12rem, 15rem) minmax(0, 1080px);
    justify-content: center;
  }
  nav + main { margin: 0; }
  nav { height: 100vh; overflow: hidden auto; border: 0; }
  nav ol { flex-direction: column; padding: 2.75rem 0 2rem; }
  nav a { padding: 0.25rem 1.1rem 0.25rem 0; }
}
@media screen and (max-width: 1359px) { section { scroll-margin-top: 3.5rem; } }
"""

_PHONE = """\
@media screen and (max-width: 640px) {
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.35rem; }
  nav ol { padding: 0 1rem; }
  .headline { grid-template-columns: repeat(2, 1fr); }
  table:not(.records) :is(th, td):first-child {
    position: sticky;
    left: 0;
    background: var(--page);
  }
  .records, .records tbody { display: block; }
  .records thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; }
  .records thead { overflow: hidden; }
  .records tr { display: flex; flex-wrap: wrap; gap: 0.2rem 1.25rem; padding: 0.75rem 0; }
  .records tr + tr { border-top: 1px solid var(--line); }
  .records tbody tr td { display: block; min-width: 0; padding: 0; border: 0; text-align: left; }
  .records td.text { white-space: normal; overflow-wrap: anywhere; }
  .records td.prose, .records td.name { flex: 1 0 100%; }
  .records td.name { order: -1; }
  .records td:empty { display: none; }
  .records td[data-title]::before {
    content: attr(data-title);
    display: block;
    font: 0.75rem/1.4 system-ui, sans-serif;
    color: var(--quiet);
  }
}
"""

_PAPER = """\
@page { margin: 14mm 12mm; }
@media print {
  body { font-size: 9.5pt; background: none; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  section, .headline div, .chart, tr, li { break-inside: avoid; }
  h2, p { break-after: avoid; }
  h2 { margin-top: 1.75rem; }
  .wide { overflow: visible; }
  table { width: 100%; font-size: 7.5pt; }
  th, td { padding: 0.2rem 0.5rem 0.2rem 0; }
  th, th.number, td.text { white-space: normal; overflow-wrap: break-word; }
  .broad { font-size: 7pt; }
  .broad :is(th, td) { padding-right: 0.35rem; }
  .broad td.number { white-space: normal; }
  .broad td.name { width: 34%; }
  td.prose, td.name, .broad td.text { min-width: 0; }
  td code { font-size: 6.5pt; }
  details[open] > summary { display: none; }
  details > code { margin: 0; color: inherit; }
}
"""

STYLE = _COLORS + _PAGE + _TABLES + _FIGURES + _BROAD + _PHONE + _PAPER
