// Streamlit lets a row be chosen by its box only; here by a click on any of its cells, or Enter.
if (!window.sparkProfRows) {
  window.sparkProfRows = true;
  const gridOf = (event) => event.target instanceof Element
    && event.target.closest('[class*="st-key-rows-"] [data-testid="stDataFrame"]')
    && event.target.closest('[data-testid="stDataFrame"]').querySelector('canvas');
  // The grid's own key for "choose the row of this cell".
  const choose = (target) => target.dispatchEvent(new KeyboardEvent('keydown', {
    key: ' ', code: 'Space', keyCode: 32, shiftKey: true, bubbles: true, cancelable: true}));
  document.addEventListener('click', (event) => {
    const grid = event.isTrusted && gridOf(event);
    if (!grid) return;
    const box = grid.getBoundingClientRect();
    const rows = Number(grid.querySelector('[role=grid]')?.getAttribute('aria-rowcount'));
    const boxes = rows > 1001 ? 44 : rows > 101 ? 36 : 32;
    if (event.clientX - box.left < boxes || event.clientY - box.top < 35) return;
    setTimeout(() => choose(grid));
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || !gridOf(event) || event.target.matches('input')) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    choose(event.target);
  }, true);
}
