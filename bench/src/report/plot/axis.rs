//! Axes: positions of values, and ticks.

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values not above zero are drawn at the lower end.
    Log,
}

/// An axis from `min` to `max`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub label: &'static str,
    pub scale: Scale,
    pub min: f64,
    pub max: f64,
}

impl Axis {
    /// An axis from the smallest to the largest of `values`, rounded outwards. A linear axis begins
    /// at zero, unless a value is below.
    pub(super) fn around(
        label: &'static str,
        scale: Scale,
        values: impl Iterator<Item = f64>,
    ) -> Self {
        let usable =
            values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0));
        let (least, most) = usable.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), value| (least.min(value), most.max(value)),
        );
        let (min, max) = match scale {
            _ if least > most => (1.0, 10.0),
            Scale::Linear => {
                let step = step((most - least.min(0.0)).max(1e-9));
                (
                    (least.min(0.0) / step).floor() * step,
                    (most / step).ceil() * step,
                )
            }
            Scale::Log => {
                let (low, high) = (least.log10().floor(), most.log10().ceil());
                (power_of_ten(low), power_of_ten(high.max(low + 1.0)))
            }
        };
        let max = if max > min { max } else { min + 1.0 };
        Self {
            label,
            scale,
            min,
            max,
        }
    }

    /// The position of a value, from 0 to 1; values outside are clamped.
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.min) / (self.max - self.min),
            Scale::Log => {
                (value.max(self.min).log10() - self.min.log10())
                    / (self.max.log10() - self.min.log10())
            }
        };
        place.clamp(0.0, 1.0)
    }

    /// The values of the ticks, and their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = Vec::new();
        match self.scale {
            Scale::Linear => {
                let step = step(self.max - self.min);
                let mut tick = (self.min / step).ceil() * step;
                while tick <= self.max + step * 1e-6 {
                    ticks.push((tick, label(tick)));
                    tick += step;
                }
            }
            Scale::Log => {
                let mut tick = self.min;
                while tick <= self.max * 1.0001 {
                    ticks.push((tick, label(tick)));
                    tick *= 10.0;
                }
            }
        }
        ticks
    }
}

fn power_of_ten(exponent: f64) -> f64 {
    10f64.powf(exponent)
}

/// A step of 1, 2 or 5 times a power of ten that divides a span into four to ten parts.
fn step(span: f64) -> f64 {
    let rough = (span / 8.0).max(f64::MIN_POSITIVE);
    let decade = power_of_ten(rough.log10().floor());
    match rough / decade {
        part if part <= 1.0 => decade,
        part if part <= 2.0 => decade * 2.0,
        part if part <= 5.0 => decade * 5.0,
        _ => decade * 10.0,
    }
}

/// A short label for a tick.
fn label(value: f64) -> String {
    let size = value.abs();
    if size < 1e-12 {
        "0".to_owned()
    } else if size >= 1e6 {
        format!("{} M", trim(value / 1e6))
    } else if size >= 1e4 {
        format!("{} k", trim(value / 1e3))
    } else {
        trim(value)
    }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::around("s", Scale::Linear, [0.3, 9.7].into_iter());
        assert_eq!((axis.min, axis.max), (0.0, 10.0));
        let ticks = axis.ticks();
        assert_eq!(ticks.first().unwrap().1, "0");
        assert_eq!(ticks.last().unwrap().1, "10");
        assert!((axis.place(5.0) - 0.5).abs() < 1e-9);
        let axis = Axis::around("s", Scale::Linear, [-2.5, 4.0].into_iter());
        assert!(axis.min <= -2.5 && axis.ticks().iter().any(|tick| tick.1 == "0"));
    }

    #[test]
    fn a_logarithmic_axis_goes_by_decades() {
        let axis = Axis::around("µs", Scale::Log, [0.0, 30.0, 4500.0].into_iter());
        assert!((axis.min - 10.0).abs() < 1e-9 && (axis.max - 10_000.0).abs() < 1e-6);
        let labels: Vec<_> = axis.ticks().into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["10", "100", "1000", "10 k"]);
        assert!(axis.place(0.0).abs() < 1e-9);
        assert!((axis.place(100.0) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn an_axis_without_values_is_valid() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::around("", scale, [].into_iter());
            assert!(axis.max > axis.min && !axis.ticks().is_empty());
        }
    }
}
