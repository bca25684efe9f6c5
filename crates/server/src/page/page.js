// The page of `serve --http`: listens to the server's events and shows them. Names of locks are any bytes, so they are only
// ever set as text, never as markup, and go back to the server in hexadecimal.
'use strict';

const at = id => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';
const POINTS = 90; // Of a small chart.

const state = {
  space: null, text: '', lock: null, mayBreak: false,
  feed: null, last: null, lastTime: 0, lastGrants: new Map(), charts: new Map(), notice: 0,
};

/// An element with text or children.
function make(tag, inside, attributes = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...[inside ?? ''].flat());
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const count = number => Math.round(number).toLocaleString('en');

function duration(seconds) {
  if (!isFinite(seconds)) return '–';
  if (seconds < 1e-3) return `${count(seconds * 1e6)} µs`;
  if (seconds < 1) return `${count(seconds * 1e3)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${count(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/// Shows the state; the outcome of a user's action stays for a while.
function say(text, bad = false, seconds = 0) {
  if (seconds) state.notice = performance.now() + 1000 * seconds;
  else if (performance.now() < state.notice) return;
  const status = at('status');
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle('bad', bad);
}

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (answer.status === 401) {
    at('login').hidden = false;
    at('secret').focus();
    throw new Error('log in with the server’s secret');
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

/// Whether another space is shown now.
async function loadSpaces() {
  const { spaces, may_break: mayBreak } = await ask('/api/spaces');
  state.mayBreak = mayBreak;
  at('login').hidden = true;
  const select = at('space');
  const known = [...select.options].map(option => option.value);
  if (known.join('\n') === spaces.join('\n') && known.length) return false;
  select.replaceChildren(...spaces.map(space => make('option', space || '(default)', { value: space })));
  const before = state.space;
  if (!spaces.includes(state.space)) state.space = spaces[0] ?? '';
  select.value = state.space;
  return state.space !== before;
}

function listen() {
  state.feed?.close();
  const query = new URLSearchParams({ space: state.space ?? '', q: state.text });
  if (state.lock) query.set('lock', state.lock.lock);
  state.feed = new EventSource(`/api/feed?${query}`);
  state.feed.onmessage = event => show(JSON.parse(event.data));
  state.feed.onerror = () => say('The server does not answer; trying again.', true);
}

function show(seen) {
  const now = performance.now() / 1000;
  const past = state.last && { seen: state.last, seconds: now - state.lastTime };
  say(seen.recovering ? 'Waiting for those who held locks before.' : `${count(seen.sessions)} clients, live`, seen.recovering);
  tiles(seen, past);
  locks(seen, past);
  if (state.lock) details(seen);
  cluster(seen.cluster);
  graph(seen.waits_for ?? []);
  state.last = seen;
  state.lastTime = now;
  state.lastGrants = new Map((seen.locks ?? []).map(lock => [lock.id, lock.grants]));
}

function tiles(seen, past) {
  const since = key => past ? Math.max(0, seen[key] - past.seen[key]) : 0;
  const rate = past ? since('grants') / past.seconds : NaN;
  const wait = since('waits') > 0 ? since('waited_seconds') / since('waits') : NaN;
  for (const [label, value, text] of [
    ['grants a second', rate, isFinite(rate) ? count(rate) : '–'],
    ['waiting', seen.waiting, count(seen.waiting)],
    ['held', seen.held, count(seen.held) + (seen.retained ? ` + ${count(seen.retained)} retained` : '')],
    ['mean wait', wait, duration(wait)],
    ['names in use', seen.names, count(seen.names)],
  ]) tile(label, value, text);
}

function tile(label, value, text) {
  let chart = state.charts.get(label);
  if (!chart) {
    const line = draw('polyline', {});
    const svg = draw('svg', { viewBox: `0 0 ${POINTS} 30`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    svg.append(line);
    const number = make('b', '');
    at('tiles').append(make('div', [number, make('span', label), svg], { class: 'tile' }));
    chart = { values: [], number, line };
    state.charts.set(label, chart);
  }
  chart.number.textContent = text;
  chart.values.push(isFinite(value) ? value : 0);
  if (chart.values.length > POINTS) chart.values.shift();
  const most = Math.max(...chart.values, 1e-9);
  chart.line.setAttribute('points', chart.values.map((v, i) => `${i},${(29 - 27 * v / most).toFixed(1)}`).join(' '));
}

function locks(seen, past) {
  const shown = seen.locks ?? [];
  at('found').textContent = shown.length < (seen.found ?? 0)
    ? `The busiest ${shown.length} of ${count(seen.found)}; search for others.` : `${count(seen.found ?? 0)} found.`;
  const begin = lock => {
    const button = make('button', lock.name, { type: 'button' });
    button.onclick = () => choose(lock);
    return [make('td', button, { class: 'name' }), ...Array.from({ length: 5 }, () => make('td'))];
  };
  fill(at('locks'), shown, lock => String(lock.id), begin, lock => {
    const before = state.lastGrants.get(lock.id);
    const rate = past && before !== undefined ? Math.max(0, lock.grants - before) / past.seconds : NaN;
    const holders = [
      lock.holders ? count(lock.holders) + (lock.ranges ? ' ranges' : lock.semaphore ? ' with permits' : '') : '',
      lock.retained ? `${count(lock.retained)} retained` : '',
    ];
    return [
      null, holders.filter(text => text).join(', ') || 'free', count(lock.waiters), isFinite(rate) ? count(rate) : '–',
      count(lock.grants), lock.contended ? duration(lock.waited_seconds / lock.contended) : '–',
    ];
  });
  shown.forEach((lock, place) => at('locks').rows[place].cells[2].classList.toggle('waited', lock.waiters > 0));
}

/// Shows `items` as rows. A row stays for as long as its key does, and only the text of its cells changes (`null`: not at all), so
/// that the focus survives and a button that is being pressed is not replaced.
function fill(body, items, keyOf, begin, textsOf) {
  const focused = document.activeElement;
  const left = new Map([...body.rows].map(row => [row.dataset.key, row]));
  const times = new Map();
  const rows = items.map(item => {
    const nth = times.get(keyOf(item)) ?? 0;
    times.set(keyOf(item), nth + 1);
    const key = `${nth} ${keyOf(item)}`;
    const row = left.get(key) ?? make('tr', begin(item), { 'data-key': key });
    left.delete(key);
    row.item = item;
    textsOf(item).forEach((text, cell) => {
      if (text !== null && row.cells[cell].textContent !== String(text)) row.cells[cell].textContent = text;
    });
    return row;
  });
  for (const row of left.values()) row.remove();
  rows.forEach((row, place) => {
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  // A row that was moved has lost it.
  if (document.activeElement !== focused && body.contains(focused)) focused.focus();
}

const cells = length => Array.from({ length }, () => make('td'));

/// Servers and shards, of a server that is one of several.
function cluster(seen) {
  at('cluster').hidden = !seen;
  if (!seen) return;
  const here = seen.shards.filter(shard => shard.here).length;
  const open = seen.shards.filter(shard => shard.state === 'open').length;
  at('cluster-title').textContent = `Cluster ${seen.name}`;
  const text = `${open} of ${seen.shards.length} shards open. Shown on this page: the locks of the ${here} that this server serves.`;
  if (at('cluster-text').textContent !== text) at('cluster-text').textContent = text;
  at('cluster-text').classList.toggle('waited', open < seen.shards.length);
  fill(at('servers'), seen.servers, server => server.at, () => cells(3), server => [
    server.at + (server.here ? ' (this one)' : ''), server.shards.length, server.shards.join(' '),
  ]);
  fill(at('shards'), seen.shards, shard => String(shard.shard), () => cells(4), shard => [
    shard.shard, shard.state, shard.server ?? '', shard.epoch ?? '',
  ]);
  seen.shards.forEach((shard, place) => at('shards').rows[place].cells[1].classList.toggle('waited', shard.state !== 'open'));
}

function choose(lock) {
  state.lock = lock;
  at('lock').hidden = !lock;
  if (lock) {
    at('lock-title').textContent = lock.name;
    at('entries').replaceChildren();
    at('history').replaceChildren();
    at('lock-title').focus();
    at('lock').scrollIntoView({ block: 'nearest' });
  }
  listen();
}

function details(seen) {
  const key = entry => `${state.mayBreak} ${entry.token ?? `${entry.pid}@${entry.host} ${mode(entry)}`}`;
  const begin = entry => {
    const row = cells(9);
    if (entry.token !== null && state.mayBreak) {
      const button = make('button', 'Break…', { type: 'button', 'aria-label': `Break the grant with token ${entry.token}` });
      button.onclick = () => confirmBreak(button.closest('tr').item);
      row[8].append(button);
    }
    return row;
  };
  fill(at('entries'), seen.entries ?? [], key, begin, entry => [
    entry.state, mode(entry), duration(entry.seconds), entry.pid, entry.user, entry.host, entry.program, entry.token ?? '', null,
  ]);
  fill(at('history'), seen.history ?? [], grant => String(grant.token), () => cells(6), grant => [
    `${duration(grant.ago)} ago`, grant.token, mode(grant), `${grant.program} ${grant.pid}@${grant.host}`,
    duration(grant.seconds), grant.end,
  ]);
}

function mode({ shared, range, permits }) {
  if (permits) return `${permits[0]} of ${count(permits[1])} permits`;
  return (shared ? 'shared' : 'exclusive') + (range ? ` ${range.join('..')}` : '');
}

function confirmBreak(entry) {
  const dialog = at('ask');
  const lock = state.lock;
  at('ask-text').textContent = `Take ${lock.name} away from process ${entry.pid} (${entry.program}) on ${entry.host}, which has had it `
    + `for ${duration(entry.seconds)}? It is told, and the next in line gets the lock.`;
  at('yes').onclick = async () => {
    dialog.close();
    try {
      await ask('/api/break', {
        method: 'POST', headers: { 'X-Lockwright': '1', 'Content-Type': 'application/json' },
        body: JSON.stringify({ space: state.space, lock: lock.lock, token: entry.token }),
      });
      say(`Broken: ${lock.name}, token ${entry.token}.`, false, 5);
    } catch (error) { say(error.message, true, 5); }
  };
  at('no').onclick = () => dialog.close();
  dialog.showModal();
}

/// Layers: whom nobody keeps waiting on the right, those who wait for them to the left.
function graph(waits) {
  const svg = at('graph');
  at('graph-text').textContent = waits.length ? `${waits.length} wait${waits.length > 1 ? 's' : ''}${waits.some(wait => wait.deadlock) ? ', with a deadlock' : ''}.`
    : 'Nobody waits.';
  // The same in words: a picture says nothing to a screen reader.
  fill(at('waits'), waits, wait => `${wait.from} ${wait.to} ${wait.why}`, () => cells(4), wait => [
    wait.from, wait.to, wait.why, wait.deadlock ? 'deadlock' : '',
  ]);
  at('waits-list').hidden = !waits.length;
  const nodes = [...new Set(waits.flatMap(wait => [wait.to, wait.from]))];
  const next = new Map(nodes.map(node => [node, []]));
  for (const { from, to } of waits) next.get(from).push(to);
  // How many are in front of each. A wait that closes a circle counts for nothing, and is drawn back below the boxes.
  const [depth, under] = [new Map(), new Set()];
  const layer = node => {
    if (under.has(node)) return -1;
    if (!depth.has(node)) {
      under.add(node);
      const deepest = Math.max(0, ...next.get(node).map(to => layer(to) + 1));
      under.delete(node);
      depth.set(node, Math.min(8, deepest));
    }
    return depth.get(node);
  };
  nodes.forEach(layer);
  const deepest = Math.max(0, ...depth.values());
  const [width, height, wide, high] = [250, 46, 180, 26];
  const used = new Map();
  const place = new Map(nodes.map(node => {
    const column = deepest - depth.get(node);
    const row = used.get(column) ?? 0;
    used.set(column, row + 1);
    return [node, { x: 10 + column * width, y: 10 + row * height }];
  }));
  const rows = Math.max(1, ...used.values());
  const back = ({ from, to }) => place.get(from).x >= place.get(to).x;
  const size = [20 + deepest * width + wide, 20 + (rows - 1) * height + high + (waits.some(back) ? 40 : 0)];
  svg.setAttribute('viewBox', `0 0 ${size.join(' ')}`);
  svg.style.maxWidth = `${Math.max(size[0], 480)}px`;
  svg.replaceChildren();
  if (!waits.length) { svg.setAttribute('height', 0); return; }
  svg.removeAttribute('height');
  for (const { from, to, why, deadlock } of waits) {
    const [a, b] = [place.get(from), place.get(to)];
    const bends = back({ from, to });
    const [x1, y1, x2, y2] = bends
      ? [a.x + wide * .6, a.y + high, b.x + wide * .4, b.y + high]
      : [a.x + wide, a.y + high / 2, b.x, b.y + high / 2];
    const low = Math.max(y1, y2) + 36;
    const curve = bends ? `C${x1},${low} ${x2},${low}` : `C${x1 + 35},${y1} ${x2 - 35},${y2}`;
    const middle = bends ? low - 12 : (y1 + y2) / 2 - 3;
    const path = draw('path', { d: `M${x1},${y1} ${curve} ${x2},${y2}`, class: deadlock ? 'deadlock' : '' });
    path.append(draw('title', {}, `${from} waits for ${to}: ${why}`));
    svg.append(path, draw('text', { x: (x1 + x2) / 2, y: middle, 'text-anchor': 'middle', class: 'why' }, short(why, 14)));
  }
  for (const [node, { x, y }] of place) {
    svg.append(draw('rect', { x, y, width: wide, height: high, rx: 5 }), draw('text', { x: x + 8, y: y + 17 }, short(node, 26)));
  }
}

const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

at('space').onchange = event => { state.space = event.target.value; state.last = null; choose(null); };
let typing;
at('search').oninput = event => {
  clearTimeout(typing);
  typing = setTimeout(() => { state.text = event.target.value; listen(); }, 200);
};
at('close').onclick = () => choose(null);
at('login').onsubmit = async event => {
  event.preventDefault();
  try {
    await ask('/api/login', { method: 'POST', headers: { 'X-Lockwright': '1' }, body: at('secret').value });
    at('secret').value = '';
    await begin();
  } catch (error) { say(error.message, true, 5); }
};

async function begin() {
  try {
    await loadSpaces();
    listen();
  } catch (error) { say(error.message, true); }
}
begin();
setInterval(() => loadSpaces().then(another => another && listen(), () => {}), 2000);
