//! Whether two sets of measurements differ: Welch's interval.

/// Mean and variance of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their variance, with one degree of freedom less than their number.
    pub variance: f64,
}

impl Summary {
    /// Of these.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self { count, mean, variance: squares / count.saturating_sub(1).max(1) as f64 }
    }

    fn squared_error(&self) -> f64 {
        self.variance / self.count.max(1) as f64
    }
}

/// The difference of two means with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// `b`'s mean less `a`'s.
    pub mean: f64,
    /// Half the interval's width.
    pub half_width: f64,
}

impl Difference {
    /// By Welch's test: variances may differ (Welch 1947, degrees of freedom by Satterthwaite).
    pub fn between(a: &Summary, b: &Summary) -> Self {
        let (ea, eb) = (a.squared_error(), b.squared_error());
        let below = |summary: &Summary, error: f64| error * error / summary.count.saturating_sub(1).max(1) as f64;
        let divisor = below(a, ea) + below(b, eb);
        let freedom = if divisor > 0.0 { (ea + eb).powi(2) / divisor } else { f64::INFINITY };
        Self { mean: b.mean - a.mean, half_width: student_97_5(freedom) * (ea + eb).sqrt() }
    }

    /// Whether the interval lies on one side of 0.
    pub fn is_significant(&self) -> bool {
        self.mean.abs() > self.half_width
    }
}

/// The 97.5 % quantile of Student's distribution, by its expansion about the normal one (Abramowitz and Stegun, 26.7.5); within
/// half a percent from three degrees of freedom on.
fn student_97_5(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.959_963_985;
    let x = NORMAL;
    let terms = [
        (x.powi(3) + x) / 4.0,
        (5.0 * x.powi(5) + 16.0 * x.powi(3) + 3.0 * x) / 96.0,
        (3.0 * x.powi(7) + 19.0 * x.powi(5) + 17.0 * x.powi(3) - 15.0 * x) / 384.0,
        (79.0 * x.powi(9) + 776.0 * x.powi(7) + 1482.0 * x.powi(5) - 1920.0 * x.powi(3) - 945.0 * x) / 92_160.0,
    ];
    let mut power = 1.0;
    terms.iter().fold(x, |sum, term| {
        power *= freedom.max(1.0);
        sum + term / power
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, quantile) in [(4.0, 2.776), (9.0, 2.262), (19.0, 2.093), (38.0, 2.024), (f64::INFINITY, 1.960)] {
            assert!((student_97_5(freedom) - quantile).abs() < 0.01, "{freedom}: {}", student_97_5(freedom));
        }
    }

    #[test]
    fn a_difference_is_told_from_noise() {
        let noise = |mean: f64, width: f64| -> Vec<f64> {
            (0..20).map(|i| mean + width * (f64::from(i) - 9.5) / 9.5).collect()
        };
        let (a, b, c) = (noise(10.0, 1.0), noise(10.1, 1.0), noise(11.5, 2.0));
        let between = |a: &[f64], b: &[f64]| Difference::between(&Summary::of(a), &Summary::of(b));
        assert!(!between(&a, &b).is_significant());
        assert!(between(&a, &c).is_significant() && between(&c, &a).mean < 0.0);
        // By hand: standard error 1.6266 with 4.08 degrees of freedom, whose quantile is 2.756.
        let known = between(&[1.0, 2.0, 3.0, 4.0], &[2.0, 4.0, 6.0, 9.0]);
        assert!((known.mean - 2.75).abs() < 1e-9 && (known.half_width - 4.483).abs() < 0.02, "{known:?}");
    }
}
