//! The axes of a plot: their ends, and the library's scales.

use std::ops::Range;

use plotters::coord::combinators::{IntoLogRange as _, LogCoord};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values not above zero are drawn at the lower end.
    Log,
}

/// An axis from `min` to `max`. Values outside are drawn at the nearest end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub label: &'static str,
    pub scale: Scale,
    pub min: f64,
    pub max: f64,
}

impl Axis {
    /// An axis from the smallest to the largest of `values`. A linear axis begins at zero, unless a
    /// value is below, and has some space above the largest one; a logarithmic one has whole
    /// decades.
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
                let min = least.min(0.0);
                (min, most + (most - min) / 20.0)
            }
            Scale::Log => {
                let (low, high) = (least.log10().floor(), most.log10().ceil());
                (10f64.powf(low), 10f64.powf(high.max(low + 1.0)))
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

    fn logarithmic(&self) -> LogCoord<f64> {
        // Rounding must not take the decades at the ends away.
        (self.min * 0.999_999..self.max * 1.000_001)
            .log_scale()
            .into()
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let value = value.clamp(self.min, self.max);
        match self.scale {
            Scale::Linear => RangedCoordf64::from(self.range()).map(&value, limit),
            Scale::Log => self.logarithmic().map(&value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let mut points = match self.scale {
            Scale::Linear => RangedCoordf64::from(self.range()).key_points(hint),
            Scale::Log => self.logarithmic().key_points(hint),
        };
        // The library has the last decade twice, if there is room for ticks between decades.
        points.dedup_by(|next, point| (*next - *point).abs() <= point.abs() * 1e-6);
        points
    }

    fn range(&self) -> Range<f64> {
        self.min..self.max
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let size = value.abs();
        // The steps of a linear axis do not meet zero exactly.
        if size < (self.max - self.min) * 1e-9 {
            "0".to_owned()
        } else if size >= 1e6 {
            format!("{} M", short(value / 1e6))
        } else if size >= 1e4 {
            format!("{} k", short(value / 1e3))
        } else {
            short(*value)
        }
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::coord::ranged1d::BoldPoints;

    fn ticks(axis: &Axis) -> Vec<String> {
        let points = axis.key_points(BoldPoints(10));
        points.iter().map(|value| axis.format_ext(value)).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::around("s", Scale::Linear, [0.3, 9.7].into_iter());
        assert!(axis.min.abs() < 1e-9 && axis.max > 9.7);
        let ticks = ticks(&axis);
        assert_eq!(ticks, ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(axis.map(&0.0, (0, 1000)), 0);
        assert_eq!(axis.map(&99.0, (0, 1000)), 1000, "at the nearest end");
        let axis = Axis::around("s", Scale::Linear, [-2.5, 4.0].into_iter());
        assert!(axis.min <= -2.5);
    }

    #[test]
    fn a_logarithmic_axis_goes_by_decades() {
        let axis = Axis::around("µs", Scale::Log, [0.0, 30.0, 4500.0].into_iter());
        assert!((axis.min - 10.0).abs() < 1e-9 && (axis.max - 10_000.0).abs() < 1e-6);
        assert_eq!(ticks(&axis), ["10", "100", "1000", "10 k"]);
        assert_eq!(axis.map(&0.0, (0, 300)), 0);
        assert_eq!(axis.map(&100.0, (0, 300)), 100);
        let one = Axis::around("", Scale::Log, [200.0, 500.0].into_iter());
        assert_eq!(ticks(&one).iter().filter(|tick| *tick == "1000").count(), 1);
        let small = Axis::around("", Scale::Log, [0.002, 0.5].into_iter());
        assert_eq!(ticks(&small), ["0.001", "0.01", "0.1", "1"]);
    }

    #[test]
    fn an_axis_without_values_is_valid() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::around("", scale, [].into_iter());
            assert!(axis.max > axis.min && !ticks(&axis).is_empty());
        }
    }
}
