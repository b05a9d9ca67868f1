use evermap::{Evermap, Options};
fn main() {
    let limit = 24u64 << 20;
    let map = Evermap::in_memory(Options::new().memory_limit(limit).evict(true).seed(1)).unwrap().default_map();
    let mut next = 0u64;
    for len in [100usize, 10_000, 300_000, 50, 1_000_000, 3_000, 64] {
        let count = 3 * limit / (len as u64 + 40);
        let t = std::time::Instant::now();
        let (mut lo, mut hi) = (u64::MAX, 0); let (mut sum, mut n) = (0f64, 0f64);
        for i in 0..count {
            map.put(&next.to_be_bytes(), &vec![7; len]).unwrap();
            next += 1;
            if i > count/2 { let u = map.stat().memory_used; lo = lo.min(u); hi = hi.max(u); sum += u as f64; n += 1.0; }
        }
        let s = map.stat();
        let sp = map.space().unwrap();
        let found = (next - count/4..next).filter(|it| map.contains(&it.to_be_bytes()).unwrap()).count();
        println!("{len}: {:?} used {:.3} (lo {:.3} hi {:.3} mean {:.3}) extents {:.3} alloc {:.3} recs {} evicted {} direct {} moved {} found {:.3}", t.elapsed(), s.memory_used as f64/limit as f64, lo as f64/limit as f64, hi as f64/limit as f64, sum / n / limit as f64, sp.extent_bytes as f64/limit as f64, sp.allocated_bytes as f64/limit as f64, map.len(), s.evictions, s.evicted_directly, s.moved_for_space, found as f64/(count/4) as f64);
    }
}
