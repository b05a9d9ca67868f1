fn main() {
    struct W;
    impl evermap_lab::crash::Watch for W {
        fn done(&self, what: &str) {
            eprintln!("{what}");
        }
    }
    let seeds = std::env::args().nth(1).map_or(2, |s| s.parse().unwrap());
    let config = evermap_lab::CrashConfig {
        indexes: vec!["dash-eh".into()],
        seeds,
        mutants: true,
        threads: 2,
    };
    let r = evermap_lab::run_crash(&config, &W).unwrap();
    println!("{}", serde_json::to_string_pretty(&r[0]).unwrap());
}
