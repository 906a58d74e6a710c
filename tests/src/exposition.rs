//! [`parse`]: a strict reader of Prometheus's text format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), for tests of what we write: it refuses whatever the format leaves
//! undefined or merely tolerates.

use std::collections::{BTreeMap, BTreeSet};

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the metric, with the ending of a histogram's parts.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// A family of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The line of help.
    pub help: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// All families by name.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    for line in text.lines() {
        let wrong = |why: &str| format!("{why}: {line:?}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
            let family = Family { help: help.to_owned(), ..Family::default() };
            if families.insert(name.to_owned(), family).is_some() {
                return Err(wrong("the family was there before"));
            }
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            let family =
                families.get_mut(name).filter(|_| name == current).ok_or_else(|| wrong("no HELP before"))?;
            if !matches!(kind, "counter" | "gauge" | "histogram") || !family.kind.is_empty() {
                return Err(wrong("a bad or second TYPE"));
            }
            family.kind = kind.to_owned();
        } else {
            let sample = sample(line).map_err(|why| wrong(&why))?;
            let family = families.get_mut(&current).ok_or_else(|| wrong("a sample before its family"))?;
            belongs(&current, family, &sample).map_err(|why| wrong(&why))?;
            if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                return Err(wrong("the series was there before"));
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(|(name, family)| complete(name, family))?;
    Ok(families)
}

fn belongs(name: &str, family: &Family, sample: &Sample) -> Result<(), String> {
    let ending = sample.name.strip_prefix(name).ok_or("a sample outside its family")?;
    let fits = match family.kind.as_str() {
        "histogram" => matches!(ending, "_bucket" | "_sum" | "_count"),
        "" => return Err("no TYPE before".into()),
        _ => ending.is_empty(),
    };
    if !fits {
        return Err(format!("a {} has no sample of that name", family.kind));
    }
    if family.kind == "counter" && !(name.ends_with("_total") && sample.value >= 0.0) {
        return Err("a counter is called _total and is not negative".into());
    }
    Ok(())
}

/// A histogram's buckets grow with `le`, and the last one is the count.
fn complete(name: &str, family: &Family) -> Result<(), String> {
    if family.kind.is_empty() {
        return Err(format!("{name} has no TYPE"));
    }
    if family.kind != "histogram" {
        return Ok(());
    }
    let of = |ending: &str| {
        let whole = format!("{name}{ending}");
        family.samples.iter().filter(move |s| s.name == whole)
    };
    for count in of("_count") {
        let mut last = (f64::NEG_INFINITY, 0.0);
        for bucket in of("_bucket") {
            let mut labels = bucket.labels.clone();
            let le = number(&labels.remove("le").ok_or("a bucket without le")?).ok_or("a bad le")?;
            if labels != count.labels {
                continue;
            }
            if le <= last.0 || bucket.value < last.1 {
                return Err(format!("{name}: buckets do not grow: {labels:?} at {le}"));
            }
            last = (le, bucket.value);
        }
        if last != (f64::INFINITY, count.value) {
            return Err(format!("{name}: the bucket +Inf is not the count: {last:?}, {}", count.value));
        }
        if !of("_sum").any(|s| s.labels == count.labels) {
            return Err(format!("{name}: no sum"));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).ok_or("no value")?;
    let (name, rest) = line.split_at(end);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return Err("a bad name".into());
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ').and_then(number).ok_or("a bad value")?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a bad label")?;
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !name.chars().all(good)
            || !name.starts_with(|c: char| !c.is_ascii_digit())
            || name.starts_with("__")
        {
            return Err(format!("a bad label name {name:?}"));
        }
        let (value, after) = quoted(after)?;
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("label {name} twice"));
        }
        match (after.strip_prefix(','), after.strip_prefix('}')) {
            (Some(more), _) => rest = more,
            (_, Some(end)) => return Ok((labels, end)),
            _ => return Err("labels do not end".into()),
        }
    }
}

/// Text up to the closing quote, and what follows it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                Some((_, 'n')) => value.push('\n'),
                _ => return Err("a bad escape".into()),
            },
            c => value.push(c),
        }
    }
    Err("a quote does not end".into())
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust reads "inf" and "infinity" too, the format does not.
        text if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_text_is_read() {
        let text = "# HELP a_total all of them\n# TYPE a_total counter\na_total{x=\"1\\\"\\\\\\n\",y=\"\"} 7\na_total 1e3\n";
        let family = &parse(text).unwrap()["a_total"];
        assert_eq!((family.samples[0].labels["x"].as_str(), family.samples[1].value), ("1\"\\\n", 1000.0));
        assert_eq!(parse(""), Ok(BTreeMap::new()));
    }

    #[test]
    fn bad_text_is_refused() {
        let head = "# HELP a_total b\n# TYPE a_total counter\n";
        let hist = "# HELP h b\n# TYPE h histogram\n";
        for (text, want) in [
            ("a_total 1\n".to_owned(), "before its family"),
            ("# TYPE a_total counter\n".to_owned(), "no HELP"),
            (format!("{head}a_total 1"), "no end"),
            (format!("{head}a_total\n"), "no value"),
            (format!("{head}a_total 1 \n"), "a bad value"),
            (format!("{head}a_total inf\n"), "a bad value"),
            (format!("{head}a_total 1\na_total 2\n"), "there before"),
            (format!("{head}b_total 1\n"), "outside its family"),
            (format!("{head}a_total{{x=\"1}} 1\n"), "does not end"),
            (format!("{head}a_total{{x=\"\\t\"}} 1\n"), "a bad escape"),
            (format!("{head}a_total{{x=\"1\",x=\"2\"}} 1\n"), "twice"),
            (format!("{head}a_total{{1x=\"1\"}} 1\n"), "a bad label name"),
            (format!("{head}a_total -1\n"), "not negative"),
            (format!("{head}{head}"), "there before"),
            (format!("{hist}h 1\n"), "no sample of that name"),
            (
                format!("{hist}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"),
                "do not grow",
            ),
            (format!("{hist}h_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"), "+Inf is not the count"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }
}
