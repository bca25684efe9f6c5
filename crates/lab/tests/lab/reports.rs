//! What people look at: claims, tables and plots.

use lockwright_lab::testbeds::Part;
use lockwright_lab::{Axis, Claim, Experiment, Findings, Plot, Series, Style, Table, page, paper};

#[test]
fn a_band_by_factor_reaches_both_ways() {
    let claim = Claim::new("x", 100.0, 149.0).within_factor(1.5);
    assert!(claim.holds());
    assert!(!Claim { ours: 66.0, ..claim.clone() }.holds());
    assert!(Claim { ours: 67.0, ..claim }.holds());
}

#[test]
fn no_figure_is_a_miss() {
    let claim = Claim::new("x", 1.0, f64::NAN).within_percent(100.0);
    assert!(!claim.holds());
    assert!(claim.to_string().ends_with("MISS: no figure came out"));
}

#[test]
fn figures_are_short_and_whole_numbers_stay_whole() {
    let said = Claim::new("x", 15_500.0, 0.012_345).within_points(99.4).to_string();
    assert!(said.starts_with("claim x paper=15500 ours=0.01235 "), "{said}");
}

#[test]
fn cells_with_commas_and_quotes_survive_csv() {
    let mut table = Table::new("t", &["a", "b"]);
    table.row(["x,y".into(), "say \"hi\"".into()]);
    assert_eq!(table.csv(), "a,b\n\"x,y\",\"say \"\"hi\"\"\"\n");
}

#[test]
fn columns_line_up() {
    let mut table = Table::new("t", &["lock", "n"]);
    table.row(["cas".into(), "240".into()]);
    assert_eq!(table.to_string(), "lock    n\ncas   240\n");
}

fn plot(points: Vec<(f64, f64)>) -> Plot {
    Plot {
        name: "p".into(),
        title: "a < b & c".into(),
        note: "simulated".into(),
        x: Axis::linear("x"),
        y: Axis::log("y"),
        series: vec![
            Series::new("ours", Style::Line, points.clone()),
            Series::new("ours, paper", Style::Cross, points),
        ],
    }
}

#[test]
fn points_that_a_logarithm_cannot_show_are_left_out() {
    let svg = plot(vec![(1.0, 0.0), (2.0, f64::NAN), (3.0, 10.0)]).svg();
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert_eq!(svg.matches("<circle").count(), 1 + 2, "one point, and two in the legend");
}

#[test]
fn a_plot_without_points_is_still_a_picture() {
    let svg = plot(Vec::new()).svg();
    assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
}

#[test]
fn text_cannot_break_the_markup() {
    assert!(plot(Vec::new()).svg().contains("a &lt; b &amp; c"));
}

#[test]
fn ticks_are_round_numbers_inside_the_axis() {
    let svg = plot(vec![(0.0, 15.0), (240.0, 278.0)]).svg();
    for tick in [">50<", ">200<", ">1000<"] {
        assert!(svg.contains(tick), "{tick} is missing");
    }
}

#[test]
fn experiments_of_one_paper_stand_together() {
    assert_eq!(paper("ours; ShiftLock (FAST '25) §3.5.2"), "ShiftLock (FAST '25)");
    assert_eq!(paper("Dezalos (EPFL 2024) Table 6"), "Dezalos (EPFL 2024)");
    assert_eq!(paper("FissLock (OSDI '24) Fig. 17 left, §7.7"), "FissLock (OSDI '24)");
    assert_eq!(paper("Asymmetric Mutual Exclusion for RDMA, §1, §3"), "Asymmetric Mutual Exclusion for RDMA");
}

#[test]
fn claims_that_were_held_out_are_counted_apart_from_those_that_were_fitted_and_given_ones_not_at_all() {
    let claim = |id: &str, part, ours| Claim { part, ..Claim::new(id, 2.0, ours) };
    let experiment =
        Experiment { id: "x", title: "Waits", source: "Paper §1", run: |_| Ok(Findings::default()) };
    let claims = vec![
        claim("a", Part::HeldOut, 2.0),
        claim("b", Part::HeldOut, 9.0),
        claim("c", Part::Fitted, 2.0),
        claim("d", Part::Given, 2.0),
    ];
    let page = page(&[(experiment, Findings { claims, ..Findings::default() })], "0.1", true);
    assert!(page.contains("Waits<td>1 of 2<td>1 of 1<td></tr>"), "{page}");
    assert!(
        page.contains("<b>held-out</b>, of figures that the testbed was not fitted on: 1 of 2 hold"),
        "{page}"
    );
    assert!(
        page.contains("<b>ours</b>, not the paper's, expected of our own additions: none hold"),
        "{page}"
    );
    assert!(page.contains("true by construction: 1, not counted"), "{page}");
    assert!(page.contains("<th scope=row>c<td>fitted<td>2"), "{page}");
}
