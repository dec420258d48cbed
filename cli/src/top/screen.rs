//! The screen, as lines that fit it; a terminal shows them, and so does plain text.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use scalerpc::{Class, Mapping};

use super::view::{ConnRow, GroupRow, Rate, Sort, View, class_name, state_name, title};
use crate::report::{duration, grouped, wrapped};

/// From this width on there is room for the groups beside the distributions.
const WIDE: usize = 78;
/// Columns of the distributions, with the gap behind them.
const LEFT: usize = 45;

/// How the screen is to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) width: usize,
    /// Lines that there are, at most.
    pub(crate) height: usize,
    pub(crate) colour: bool,
    pub(crate) sort: Sort,
}

impl Look {
    fn heading(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::Cyan)
        } else {
            style
        }
    }

    fn alarm(&self, is: bool) -> Style {
        match (is, self.colour) {
            (false, _) => Style::new(),
            (true, false) => Style::new().add_modifier(Modifier::BOLD),
            (true, true) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Columns of what a line is about.
const INDENT: usize = 12;

/// A line, or where it is too long several.
fn fit(text: &str, style: Style, look: &Look) -> Vec<Line<'static>> {
    let width = look.width.max(2 * INDENT);
    if text.chars().count() <= width {
        return vec![Line::styled(text.to_owned(), style)];
    }
    let (head, rest) = text.split_at(INDENT);
    let lines = wrapped(rest, width - INDENT).into_iter().enumerate();
    let line = |(at, line): (usize, String)| {
        let head = if at == 0 { head } else { "" };
        Line::styled(format!("{head:INDENT$}{line}"), style)
    };
    lines.map(line).collect()
}

/// All lines, the connections last: as many as fit.
pub(crate) fn lines(view: &View<'_>, place: &str, look: &Look) -> Vec<Line<'static>> {
    let mut lines = vec![heading(view, place, look)];
    lines.extend(totals(view, look));
    lines.extend(pools(view, look));
    lines.extend(zones(view, look));
    lines.extend(middle(view, look));
    let left = look.height.saturating_sub(lines.len());
    lines.extend(connections(view, left, look));
    lines.truncate(look.height);
    lines
}

fn rate(rate: Rate) -> String {
    match rate {
        None => "-".into(),
        Some(rate) if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => grouped(rate.round() as u64),
    }
}

fn heading(view: &View<'_>, place: &str, look: &Look) -> Line<'static> {
    let server = &view.now.server;
    let mut text = format!("scalerpc top  {place}");
    if server.workers > 1 {
        text.push_str(&format!("  worker {} of {}", server.worker, server.workers));
    }
    Line::styled(text, look.heading())
}

fn totals(view: &View<'_>, look: &Look) -> Vec<Line<'static>> {
    let (server, counters) = (&view.now.server, &view.now.counters);
    let mapping = match server.mapping {
        Mapping::Virtual => format!(
            "slices of {}, groups of {}",
            duration(server.time_slice.as_nanos() as u64),
            server.group_size
        ),
        Mapping::Static => "static mapping".into(),
    };
    let mut lines = vec![format!(
        "connections {} of {}, window {}, {mapping}",
        grouped(counters.connections),
        grouped(server.clients_max.into()),
        server.window,
    )];
    if server.mapping == Mapping::Virtual {
        let classes = [Class::High, Class::Normal, Class::Low]
            .map(|class| format!("{} {}", view.groups_of(class), class_name(class)));
        let waiting: u32 = view.groups.iter().map(|group| group.waiting).sum();
        lines.push(format!(
            "groups      {} ({}); {} wait",
            view.groups.len(),
            classes.join(", "),
            grouped(waiting.into()),
        ));
    }
    lines.push(format!(
        "calls       {}/s: {} direct, {} staged; {} in all",
        rate(view.calls),
        rate(view.direct),
        rate(view.staged),
        grouped(counters.calls),
    ));
    lines.push(format!(
        "switches    {}/s; slices {}/s; stalls {}/s; {} moved, {} merged",
        rate(view.switches),
        rate(view.slices),
        rate(view.stalls),
        grouped(counters.moves),
        grouped(counters.merges),
    ));
    let ended = counters.violations + counters.failures;
    let mut text = format!(
        "evicted     {} for violations, {} for failures",
        grouped(counters.violations),
        grouped(counters.failures)
    );
    if let Some(eviction) = server.last_eviction {
        let why = eviction.why.map(|why| why.to_string());
        let why = why.unwrap_or_else(|| "its connection failed".into());
        text.push_str(&format!("; last: seat {}, {why}", eviction.seat));
    }
    let plain = lines.iter().flat_map(|line| fit(line, Style::new(), look));
    plain
        .chain(fit(&text, look.alarm(ended > 0), look))
        .collect()
}

fn pools(view: &View<'_>, look: &Look) -> Vec<Line<'static>> {
    if view.now.server.mapping == Mapping::Static {
        return Vec::new();
    }
    let line = |(name, pool): (char, &scalerpc::observe::PoolView)| {
        let role = match pool.processing {
            true if view.now.server.draining => "draining",
            true => "processing",
            false => "warmup",
        };
        let text = match (pool.group, pool.epoch) {
            (Some(group), Some(_)) if look.width < WIDE => format!(
                "pool {name}      {role:<10}  group {group}: {} active, {} fetching",
                pool.active, pool.fetching,
            ),
            (Some(group), Some(epoch)) => format!(
                "pool {name}      {role:<10}  group {group}, epoch {}: {} active, {} fetching",
                grouped(epoch),
                pool.active,
                pool.fetching,
            ),
            _ => format!("pool {name}      {role:<10}  nobody's"),
        };
        fit(&text, Style::new(), look)
    };
    let pools = ['A', 'B'].into_iter().zip(&view.now.pools);
    pools.flat_map(line).collect()
}

fn zones(view: &View<'_>, look: &Look) -> Vec<Line<'static>> {
    let zones = view.zones;
    let mut text = format!(
        "zones       {}: {} free, {} mapped, {} in quarantine",
        grouped(zones.all.into()),
        grouped(zones.free.into()),
        grouped(zones.mapped().into()),
        grouped(zones.quarantined.into()),
    );
    let oldest = view.now.quarantine.iter().max_by_key(|held| held.age_ns);
    // A few slices are nothing special.
    let slice_ns = view.now.server.time_slice.as_nanos() as u64;
    let is_old = oldest.is_some_and(|held| held.age_ns > slice_ns.saturating_mul(10));
    if let Some(held) = oldest {
        text.push_str(&format!(
            " (oldest {}, seat {})",
            duration(held.age_ns),
            held.seat
        ));
    }
    fit(&text, look.alarm(is_old), look)
}

/// Distributions, and beside them the groups.
fn middle(view: &View<'_>, look: &Look) -> Vec<Line<'static>> {
    let table = Style::new().add_modifier(Modifier::UNDERLINED);
    let period = match view.period {
        Some(period) => format!("in {:.1} s", period.as_secs_f64()),
        None => "since the start".into(),
    };
    let mut left = vec![format!(
        "{period:<15} {:>8} {:>8} {:>8}",
        "p50", "p99", "max"
    )];
    for (name, histogram) in view.distributions() {
        let (title, is_time) = title(name);
        let value = |value: Option<u64>| match value {
            None => "-".into(),
            Some(value) if is_time => duration(value),
            Some(value) => grouped(value),
        };
        left.push(format!(
            "{title:<15} {:>8} {:>8} {:>8}",
            value(histogram.quantile(500)),
            value(histogram.quantile(990)),
            value(histogram.max()),
        ));
    }
    let has_groups = look.width >= WIDE && view.now.server.mapping == Mapping::Virtual;
    let rows = left.len();
    let right = if has_groups {
        group_table(view, rows)
    } else {
        Vec::new()
    };
    let mut right = right.into_iter();
    let join = |(at, left): (usize, String)| {
        let style = if at == 0 { table } else { Style::new() };
        let mut spans = vec![Span::styled(left, style)];
        if let Some(right) = right.next() {
            let gap = LEFT - spans[0].width().min(LEFT);
            spans.push(Span::raw(" ".repeat(gap)));
            spans.push(Span::styled(right, style));
        }
        Line::from(spans)
    };
    left.into_iter().enumerate().map(join).collect()
}

fn group_table(view: &View<'_>, rows: usize) -> Vec<String> {
    let mut table = vec![format!(
        "{:>5}  {:<6} {:>5} {:>5} {:>8}",
        "group", "class", "size", "wait", "calls/s"
    )];
    let row = |row: &GroupRow| {
        let mark = match row.served {
            Some(true) => '*',
            Some(false) => '+',
            None => ' ',
        };
        format!(
            "{:>5}{mark} {:<6} {:>5} {:>5} {:>8}",
            row.group,
            class_name(row.class),
            row.members,
            row.waiting,
            rate(row.calls),
        )
    };
    let room = rows.saturating_sub(1);
    let all = view.groups.len();
    let shown = if all > room {
        room.saturating_sub(1)
    } else {
        all
    };
    table.extend(view.groups.iter().take(shown).map(row));
    if all > shown {
        table.push(format!("  and {} more", all - shown));
    }
    table
}

fn connections(view: &View<'_>, lines: usize, look: &Look) -> Vec<Line<'static>> {
    let has_groups = view.now.server.mapping == Mapping::Virtual;
    let is_wide = look.width >= WIDE;
    let header = if has_groups && is_wide {
        format!(
            "{:>7} {:>6} {:<7} {:<9} {:>9} {:>5} {:>9} {:>10} {:>5}",
            "seat", "group", "class", "state", "calls/s", "owed", "waits", "worst wait", "score"
        )
    } else {
        format!(
            "{:>7} {:<7} {:<9} {:>9} {:>9} {:>10}",
            "seat", "class", "state", "calls/s", "waits", "worst wait"
        )
    };
    let row = |row: &ConnRow| {
        let conn = &row.conn;
        let mark = if row.is_mine { "this " } else { "" };
        let seat = format!("{mark}{}", row.seat);
        let (class, state) = (class_name(conn.class), state_name(conn));
        let waits = conn.waited_ns.map_or("-".into(), duration);
        let worst = match conn.worst_wait_ns {
            0 => "-".into(),
            worst => duration(worst),
        };
        let calls = rate(row.calls);
        if !(has_groups && is_wide) {
            return format!("{seat:>7} {class:<7} {state:<9} {calls:>9} {waits:>9} {worst:>10}");
        }
        let dash = |number: Option<u32>| number.map_or("-".into(), |it| it.to_string());
        let (group, score) = (dash(conn.group), dash(conn.score.map(u32::from)));
        format!(
            "{seat:>7} {group:>6} {class:<7} {state:<9} {calls:>9} {:>5} {waits:>9} {worst:>10} {score:>5}",
            conn.answers_owed,
        )
    };
    let all = view.connections.len();
    let room = lines.saturating_sub(1);
    let shown = if all > room {
        room.saturating_sub(1)
    } else {
        all
    };
    let style = Style::new().add_modifier(Modifier::UNDERLINED);
    let mut table = vec![Line::styled(header, style)];
    let rows = view.connections.iter().take(shown);
    table.extend(rows.map(|it| Line::raw(row(it))));
    if all > shown {
        table.push(Line::raw(format!(
            "{:>7} more, sorted by {}",
            grouped((all - shown) as u64),
            look.sort.name()
        )));
    }
    table
}
