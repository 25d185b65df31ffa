//! The simplex search of Nelder and Mead (1965), for fits of a few parameters. The same inputs give the same
//! result.

/// Evaluations after which a search ends.
const MAX_EVALUATIONS: usize = 2000;

/// Difference between the best and the worst corner, relative to the best, at which a search ends.
const TOLERANCE: f64 = 1e-7;

/// The point near `start` at which `cost` is smallest. `cost` may return infinity or NaN at invalid points.
pub fn minimize(start: &[f64], step: f64, cost: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let cost = |point: &[f64]| {
        let value = cost(point);
        if value.is_nan() { f64::INFINITY } else { value }
    };
    let mut corners: Vec<(Vec<f64>, f64)> = vec![(start.to_vec(), cost(start))];
    for axis in 0..start.len() {
        let mut point = start.to_vec();
        point[axis] += step;
        let value = cost(&point);
        corners.push((point, value));
    }
    let mut n_evaluations = corners.len();
    while n_evaluations < MAX_EVALUATIONS {
        corners.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (best, worst) = (corners[0].1, corners[corners.len() - 1].1);
        if (worst - best).abs() <= TOLERANCE * best.abs() {
            break;
        }
        n_evaluations += improve(&mut corners, &cost);
    }
    corners.sort_by(|a, b| a.1.total_cmp(&b.1));
    corners.swap_remove(0).0
}

/// Replaces the worst of the sorted corners by a better one, or shrinks all towards the best. Returns the
/// number of evaluations.
fn improve(corners: &mut [(Vec<f64>, f64)], cost: &impl Fn(&[f64]) -> f64) -> usize {
    let n = corners.len() - 1;
    let centre: Vec<f64> = (0..n)
        .map(|axis| corners[..n].iter().map(|(point, _)| point[axis]).sum::<f64>() / n as f64)
        .collect();
    let along = |factor: f64| -> (Vec<f64>, f64) {
        let worst = &corners[n].0;
        let point: Vec<f64> = centre.iter().zip(worst).map(|(c, w)| c + factor * (c - w)).collect();
        let value = cost(&point);
        (point, value)
    };
    let reflected = along(1.0);
    if reflected.1 < corners[0].1 {
        let expanded = along(2.0);
        corners[n] = if expanded.1 < reflected.1 { expanded } else { reflected };
        return 2;
    }
    if reflected.1 < corners[n - 1].1 {
        corners[n] = reflected;
        return 1;
    }
    let contracted = along(if reflected.1 < corners[n].1 { 0.5 } else { -0.5 });
    if contracted.1 < corners[n].1.min(reflected.1) {
        corners[n] = contracted;
        return 2;
    }
    let best = corners[0].0.clone();
    for corner in &mut corners[1..] {
        corner.0.iter_mut().zip(&best).for_each(|(x, b)| *x = b + 0.5 * (*x - b));
        corner.1 = cost(&corner.0);
    }
    2 + n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_valley_of_rosenbrock_is_followed_to_its_end() {
        let rosenbrock = |p: &[f64]| (1.0 - p[0]).powi(2) + 100.0 * (p[1] - p[0] * p[0]).powi(2);
        let found = minimize(&[-1.2, 1.0], 0.5, rosenbrock);
        assert!((found[0] - 1.0).abs() < 1e-3 && (found[1] - 1.0).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn points_without_a_value_are_avoided() {
        let cost = |p: &[f64]| if p[0] < 0.0 { f64::NAN } else { (p[0] - 0.1).abs() };
        assert!((minimize(&[3.0], 1.0, cost)[0] - 0.1).abs() < 1e-4);
    }
}
