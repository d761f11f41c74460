// Another page begins at its top; the browser's back button leads to where one was.
if (!window.sparkProfPlaces) {
  const places = window.sparkProfPlaces = new Map();
  const main = () => document.querySelector('[data-testid=stMain]');
  let wanted = null, until = 0, busy = 0, height = 0;
  const seek = () => {
    const found = main(), app = document.querySelector('[data-testid=stApp]');
    if (wanted === null || !found || !app) return;
    found.scrollTop = wanted;
    if (app.dataset.testScriptState !== 'notRunning') busy = performance.now();
    if (performance.now() > Math.min(busy + 700, until)) wanted = null;
    else requestAnimationFrame(seek);
  };
  const go = (to) => {
    wanted = to; busy = performance.now(); until = busy + 8000; height = 0;
    seek();
  };
  document.addEventListener('scroll', (event) => {
    const found = main();
    if (event.target !== found || wanted !== null) return;
    // Streamlit empties a page before it goes to the next one: then its end comes to who was there.
    const ends = found.scrollTop + found.clientHeight >= found.scrollHeight - 1;
    if (ends && found.scrollHeight < height) return;
    height = found.scrollHeight;
    // Streamlit writes the next page's query into this one's address before it goes there.
    for (const key of [location.href, location.pathname]) places.set(key, found.scrollTop);
  }, true);
  for (const kind of ['wheel', 'keydown', 'pointerdown', 'touchstart'])
    document.addEventListener(kind, () => { wanted = null; }, true);
  const push = history.pushState;
  history.pushState = function (...given) {
    const page = location.pathname;
    push.apply(this, given);
    if (location.pathname !== page) go(0);
  };
  window.addEventListener('popstate', () => {
    go(places.get(location.href) ?? places.get(location.pathname) ?? 0);
  });
  const copy = (event) => {
    const command = event.target instanceof Element && event.target.closest('pre.command');
    if (!command || !getSelection().isCollapsed || (event.key ?? 'Enter') !== 'Enter') return;
    navigator.clipboard?.writeText(command.innerText).then(() => { command.dataset.copied = ''; });
  };
  for (const kind of ['click', 'keydown']) document.addEventListener(kind, copy);
}
