//! What measurements say and what they do not: means with 95 % intervals, differences, ratios, and many of them at once.
//!
//! Student's distribution is computed from the incomplete beta function (DLMF 8.17, 26.5 of Abramowitz and Stegun), for any
//! degrees of freedom.

/// Share of intervals that hold what they are about.
const CONFIDENCE: f64 = 0.95;
/// Steps of the continued fraction; it needs about the square root of the degrees of freedom.
const FRACTION_STEPS: usize = 10_000;

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

    /// The mean's 95 % interval by Student's distribution; `None` of fewer than two values.
    pub fn interval(&self) -> Option<(f64, f64)> {
        (self.count > 1).then(|| {
            let half = student_quantile((self.count - 1) as f64) * self.squared_error().sqrt();
            (self.mean - half, self.mean + half)
        })
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
        Self { mean: b.mean - a.mean, half_width: student_quantile(freedom) * (ea + eb).sqrt() }
    }

    /// Whether the interval lies on one side of 0.
    pub fn is_significant(&self) -> bool {
        self.mean.abs() > self.half_width
    }
}

/// How much longer runs take than their partners: the ratio of the means of pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Mean of the second values over mean of the first.
    pub mean: f64,
    /// Its 95 % interval; `None` where pairs are too few or too noisy to have one.
    pub interval: Option<(f64, f64)>,
    /// That a ratio so far from 1 comes by chance, both sides; `None` of fewer than two pairs.
    pub p: Option<f64>,
}

impl Ratio {
    /// Of pairs (without, with), each of one round, so that what drifts from round to round falls out.
    ///
    /// The interval is Fieller's for pairs ("Some problems in interval estimation", Journal of the Royal Statistical Society B 16,
    /// 1954): all ratios `r` for which the means of `with` and `r * without` do not differ by Student's test for pairs. It is
    /// about the ratio of means itself, not about a mean of ratios or of logarithms, and it leaves out 1 exactly when that test
    /// finds a difference, whose p-value is given.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let (a, b) = (Summary::of(&x), Summary::of(&y));
        if pairs.is_empty() || a.mean <= 0.0 {
            return None;
        }
        let mean = b.mean / a.mean;
        if pairs.len() < 2 {
            return Some(Self { mean, interval: None, p: None });
        }
        let (n, freedom) = (pairs.len() as f64, (pairs.len() - 1) as f64);
        let together: f64 = pairs.iter().map(|(x, y)| (x - a.mean) * (y - b.mean)).sum::<f64>() / freedom / n;
        let (xx, yy, t) = (a.squared_error(), b.squared_error(), student_quantile(freedom));
        // r lies within while (b - r a)^2 <= t^2 (yy - 2 r xy + r^2 xx): between the roots of a quadratic.
        let square = a.mean * a.mean - t * t * xx;
        let linear = a.mean * b.mean - t * t * together;
        let constant = b.mean * b.mean - t * t * yy;
        let root = (linear * linear - square * constant).max(0.0).sqrt();
        let interval = (square > 0.0).then(|| ((linear - root) / square, (linear + root) / square));
        let error = (xx + yy - 2.0 * together).max(0.0).sqrt();
        let difference = b.mean - a.mean;
        let p = if error > 0.0 { two_sided(difference / error, freedom) } else { f64::from(difference == 0.0) };
        Some(Self { mean, interval, p: Some(p) })
    }
}

/// P-values of many questions asked at once, raised so that the chance of even one false "yes" below 5 % stays below 5 % (Holm,
/// "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979). In the order given.
pub fn holm(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut adjusted = vec![0.0; values.len()];
    let mut least: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        least = least.max(values[index] * (values.len() - rank) as f64).min(1.0);
        adjusted[index] = least;
    }
    adjusted
}

/// The middle value, or the mean of the two in the middle; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

/// Student's quantile for an interval of both sides.
fn student_quantile(freedom: f64) -> f64 {
    /// Above it Student's distribution is the normal one to seven digits.
    const NORMAL_FROM: f64 = 1e7;
    let freedom = freedom.clamp(1.0, NORMAL_FROM);
    // The tail falls as t grows: halve until nothing is between.
    let (mut low, mut high) = (0.0_f64, 100.0_f64);
    while high - low > 1e-12 * high {
        let middle = f64::midpoint(low, high);
        if two_sided(middle, freedom) > 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The chance of a value of Student's distribution at least so far from 0.
fn two_sided(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
}

/// The regularised incomplete beta function (DLMF 8.17.2).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    // The fraction converges fast below the mean (DLMF 8.17.22); above it the other side is computed.
    if x <= (a + 1.0) / (a + b + 2.0) {
        front / a / beta_fraction(x, a, b)
    } else {
        1.0 - front / b / beta_fraction(1.0 - x, b, a)
    }
}

/// The denominator `1 + d1/(1 + d2/(1 + …))` of DLMF 8.17.22, from the front by Lentz's method.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let away_from_0 = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for step in 1..=FRACTION_STEPS {
        let m = (step / 2) as f64;
        let term = if step % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / away_from_0(1.0 + term * d);
        c = away_from_0(1.0 + term / c);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// The logarithm of the gamma function of a positive number: Stirling's series (DLMF 5.11.1) from 10 on, and what leads there.
fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let (r, ln_sqrt_2_pi) = (1.0 / x, 0.918_938_533_204_672_8);
    let series =
        r * (1.0 / 12.0 - r * r * (1.0 / 360.0 - r * r * (1.0 / 1260.0 - r * r * (1.0 / 1680.0 - r * r / 1188.0))));
    (x - 0.5) * x.ln() - x + ln_sqrt_2_pi + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() <= 1e-9 * expected.abs().max(1e-3), "{value} is not {expected}");
    }

    /// Rounds of runs without and with something, as made up for `scipy.stats.ttest_rel`.
    const PAIRS: [(f64, f64); 5] = [(10.1, 10.5), (10.4, 10.9), (9.9, 10.1), (10.2, 10.8), (10.6, 10.9)];

    /// Known values are those of SciPy 1.17.1.
    #[test]
    fn student_is_as_scipy_has_it() {
        for (freedom, quantile) in [
            (1.0, 12.706_204_736_174_694),
            (2.0, 4.302_652_729_749_462),
            (4.0, 2.776_445_105_197_793_4),
            (5.5, 2.501_858_617_589_239),
            (9.0, 2.262_157_162_798_205),
            (29.0, 2.045_229_642_132_703),
            (200.0, 1.971_896_223_633_908_8),
        ] {
            close(student_quantile(freedom), quantile);
        }
        assert!((student_quantile(f64::INFINITY) - 1.959_963_985).abs() < 1e-6);
        for (t, freedom, p) in [
            (0.5, 1.0, 0.704_832_764_699_133_5),
            (2.0, 4.0, 0.116_116_523_516_815_56),
            (-2.5, 3.7, 0.071_822_022_911_826_78),
            (4.0, 9.0, 0.003_110_428_310_385_854_3),
            (1.0, 29.0, 0.325_581_988_016_193_65),
            (12.0, 5.0, 7.089_492_517_161_522e-5),
            (0.0, 7.0, 1.0),
        ] {
            close(two_sided(t, freedom), p);
        }
    }

    #[test]
    fn means_have_the_intervals_of_scipy() {
        let (x, y): (Vec<f64>, Vec<f64>) = PAIRS.iter().copied().unzip();
        let (low, high) = Summary::of(&x).interval().unwrap();
        close(low, 9.904_520_861_507_333);
        close(high, 10.575_479_138_492_664);
        let (low, high) = Summary::of(&y).interval().unwrap();
        close(low, 10.213_474_409_720_385);
        close(high, 11.066_525_590_279_612);
        assert_eq!((Summary::of(&[1.0]).interval(), Summary::of(&[]).interval()), (None, None));
    }

    #[test]
    fn a_ratio_has_the_interval_in_which_the_test_for_pairs_finds_no_difference() {
        let ratio = Ratio::of(&PAIRS).unwrap();
        close(ratio.mean, 1.039_062_5);
        // Roots of `scipy.stats.ttest_1samp(y - r * x, 0).pvalue - 0.05`.
        let (low, high) = ratio.interval.unwrap();
        close(low, 1.020_033_135_015_856_7);
        close(high, 1.057_881_431_050_185_4);
        // `scipy.stats.ttest_rel(y, x).pvalue`.
        close(ratio.p.unwrap(), 0.004_812_678_330_044_269);
    }

    #[test]
    fn few_pairs_or_none_claim_nothing() {
        assert_eq!(Ratio::of(&[]), None);
        assert_eq!(Ratio::of(&[(2.0, 3.0)]), Some(Ratio { mean: 1.5, interval: None, p: None }));
        assert_eq!(Ratio::of(&[(2.0, 2.0), (3.0, 3.0)]).unwrap().p, Some(1.0));
        // A mean that cannot be told from 0 bounds no ratio.
        assert_eq!(Ratio::of(&[(0.1, 1.0), (10.0, 2.0)]).unwrap().interval, None);
    }

    #[test]
    fn many_questions_at_once_are_answered_more_carefully() {
        // By hand, and as `multipletests(…, method="holm")` of statsmodels documents it.
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (value, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            close(*value, expected);
        }
        assert_eq!(holm(&[0.9, 0.6]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (None, Some(2.0), Some(2.5)));
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
