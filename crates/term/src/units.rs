//! Numbers with units, read from arguments and written for people.

/// Reads a duration: a number with `ns`, `us`, `ms` or `s`; without a unit it is nanoseconds.
///
/// # Errors
/// What is wrong with it, in words.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| c.is_alphabetic() && c != 'e').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" | "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(format!("{unit:?} is no unit of time: use ns, us, ms or s")),
    };
    let ns =
        number.parse::<f64>().map_err(|_| format!("{text:?} is not a duration such as 500ns or 10ms"))?
            * factor;
    if (0.0..=1e18).contains(&ns) { Ok(ns.round() as u64) } else { Err(format!("{text:?} is out of range")) }
}

/// Reads a rate between 0 and 1.
///
/// # Errors
/// What is wrong with it, in words.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err(format!("{text:?} is not a rate between 0 and 1")),
    }
}

/// A whole number with thin groups: `1 234 567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// So many of something: `1 lock`, `1 000 locks`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A rate for people: `12.3 M`, `456 k`.
pub fn scaled(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} G", v / 1e9),
        v if v >= 1e6 => format!("{:.2} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.1}"),
    }
}

/// Nanoseconds as microseconds.
pub fn micros(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration_ns("10ms"), Ok(10_000_000));
        assert_eq!(duration_ns("1.5us"), Ok(1_500));
        assert_eq!(duration_ns("1e3"), Ok(1_000));
        assert_eq!(duration_ns("7"), Ok(7));
        assert!(duration_ns("10 parsecs").is_err());
        assert!(duration_ns("-1ms").is_err());
        assert!(duration_ns("").is_err());
    }

    #[test]
    fn rates_lie_between_zero_and_one() {
        assert_eq!(rate("1e-5"), Ok(1e-5));
        assert!(rate("1.1").is_err() && rate("-0.1").is_err() && rate("NaN").is_err() && rate("x").is_err());
    }

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(grouped(12), "12");
    }
}
