//! A closed network of queues: how much customers get done that take turns at servers.

/// Returns how much `customers` get done in a unit of time, each of whom spends `think` alone and
/// then needs `demands[i]` of server `i`, by exact mean value analysis (Reiser and Lavenberg,
/// 1980).
///
/// Takes O(`customers` × servers) time.
pub(super) fn throughput(customers: usize, think: f64, demands: &[f64]) -> f64 {
    let mut queues = vec![0.0; demands.len()];
    let mut throughput = 0.0;
    for customers in 1..=customers {
        let stays: Vec<_> =
            demands.iter().zip(&queues).map(|(demand, queue)| demand * (1.0 + queue)).collect();
        throughput = customers as f64 / (think + stays.iter().sum::<f64>());
        queues.iter_mut().zip(&stays).for_each(|(queue, stay)| *queue = throughput * stay);
    }
    throughput
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_customer_never_waits() {
        assert_eq!(throughput(1, 70.0, &[30.0]), 0.01);
        assert_eq!(throughput(1, 50.0, &[30.0, 20.0]), 0.01);
    }

    /// The more there are, the closer to the limit of the busiest server.
    #[test]
    fn the_busiest_server_is_the_limit() {
        assert!((throughput(1000, 70.0, &[30.0]) - 1.0 / 30.0).abs() < 1e-6);
        assert!((throughput(1000, 70.0, &[10.0, 30.0]) - 1.0 / 30.0).abs() < 1e-6);
        assert!(throughput(3, 70.0, &[10.0, 30.0]) < throughput(3, 70.0, &[0.0, 30.0]));
    }

    #[test]
    fn without_servers_nobody_waits() {
        assert_eq!(throughput(8, 4.0, &[]), 2.0);
    }
}
