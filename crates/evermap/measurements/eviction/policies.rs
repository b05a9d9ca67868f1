//! The simulated policies.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::trace::{Random, Request, mix};

/// A cache that evicts by some policy.
pub(crate) trait Policy {
    fn name(&self) -> &'static str;
    /// Looks a key up. Returns `true` if it is there and has not expired.
    fn get(&mut self, request: &Request, now: u64) -> bool;
    /// Stores an item that was not found.
    fn put(&mut self, request: &Request, now: u64);

    /// Looks keys up, one after the other, and stores what is not found. `now` is the number of
    /// the first request. Returns the number of hits.
    fn run(&mut self, requests: &[Request], now: u64) -> u64 {
        let mut hits = 0;
        for (now, request) in (now..).zip(requests) {
            let hit = self.get(request, now);
            if !hit {
                self.put(request, now);
            }
            hits += u64::from(hit);
        }
        hits
    }
}

/// Returns the bytes that an item takes in the store, and its slot in the index.
pub(crate) fn record_bytes(len: u32) -> u64 {
    let bytes = 32 + 8 + u64::from(len.next_multiple_of(8));
    // Blocks grow in steps of an eighth.
    let step = (bytes.next_power_of_two() / 16).max(16);
    bytes.next_multiple_of(step) + 20
}

/// Returns all simulated policies, each with this number of bytes, for this number of requests in a
/// second.
pub(crate) fn all(bytes: u64, per_second: u64) -> Vec<Box<dyn Policy>> {
    let queues = |name, rule| Queues::new(name, bytes, per_second, rule);
    vec![
        Box::new(Memcached::new(bytes, per_second)),
        Box::new(queues("LRU", Rule::Segmented { protected: 0.0 })),
        Box::new(queues("segmented LRU", Rule::Segmented { protected: 0.8 })),
        Box::new(queues("SIEVE", Rule::Sieve)),
        Box::new(queues("S3-FIFO", Rule::S3 { ghosts: true })),
        Box::new(queues("S3-FIFO, no ghosts", Rule::S3 { ghosts: false })),
        Box::new(Hashed::new(bytes, per_second)),
        Box::new(queues("CLOCK", Rule::Clock)),
        Box::new(queues("hand, no sizes", Rule::Hand { sizes: false })),
        Box::new(queues("hand", Rule::Hand { sizes: true })),
    ]
}

const NONE: usize = usize::MAX;

/// An item in one of the lists.
#[derive(Clone, Copy)]
struct Item {
    key: u64,
    bytes: u64,
    frequency: u8,
    read: bool,
    list: usize,
    newer: usize,
    older: usize,
}

/// Items in doubly linked lists, and a table of their keys.
struct Lists {
    items: Vec<Item>,
    unused: Vec<usize>,
    table: HashMap<u64, usize>,
    /// Newest and oldest item of each list, and its bytes.
    lists: Vec<(usize, usize, u64)>,
}

impl Lists {
    fn new(count: usize) -> Self {
        let lists = vec![(NONE, NONE, 0); count];
        Lists { items: Vec::new(), unused: Vec::new(), table: HashMap::new(), lists }
    }

    fn bytes(&self) -> u64 {
        self.lists.iter().map(|list| list.2).sum()
    }

    fn oldest(&self, list: usize) -> Option<usize> {
        Some(self.lists[list].1).filter(|&at| at != NONE)
    }

    fn insert(&mut self, key: u64, bytes: u64, list: usize) -> usize {
        let (newer, older) = (NONE, NONE);
        let item = Item { key, bytes, frequency: 0, read: false, list, newer, older };
        let at = self.unused.pop().unwrap_or(self.items.len());
        if at == self.items.len() {
            self.items.push(item);
        } else {
            self.items[at] = item;
        }
        self.table.insert(key, at);
        self.link(at, list);
        at
    }

    /// Makes an item the newest of a list.
    fn link(&mut self, at: usize, list: usize) {
        let newest = self.lists[list].0;
        let item = &mut self.items[at];
        (item.list, item.older, item.newer) = (list, newest, NONE);
        self.lists[list].2 += item.bytes;
        match newest {
            NONE => self.lists[list].1 = at,
            _ => self.items[newest].newer = at,
        }
        self.lists[list].0 = at;
    }

    fn unlink(&mut self, at: usize) {
        let Item { list, newer, older, bytes, .. } = self.items[at];
        match newer {
            NONE => self.lists[list].0 = older,
            _ => self.items[newer].older = older,
        }
        match older {
            NONE => self.lists[list].1 = newer,
            _ => self.items[older].newer = newer,
        }
        self.lists[list].2 -= bytes;
    }

    fn relink(&mut self, at: usize, list: usize) {
        self.unlink(at);
        self.link(at, list);
    }

    fn remove(&mut self, at: usize) -> u64 {
        self.unlink(at);
        self.table.remove(&self.items[at].key);
        self.unused.push(at);
        self.items[at].key
    }
}

/// When items expire.
struct Expiries {
    /// Requests in a second.
    per_second: u64,
    due: BTreeMap<u64, Vec<u64>>,
    at: HashMap<u64, u64>,
}

impl Expiries {
    fn new(per_second: u64) -> Self {
        Expiries { per_second, due: BTreeMap::new(), at: HashMap::new() }
    }

    fn put(&mut self, request: &Request, now: u64) {
        self.at.remove(&request.key);
        if request.ttl > 0 {
            let at = now / self.per_second + u64::from(request.ttl);
            self.due.entry(at).or_default().push(request.key);
            self.at.insert(request.key, at);
        }
    }

    /// Returns the keys that have expired since the last call.
    fn take(&mut self, now: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        let now = now / self.per_second;
        while let Some(first) = self.due.first_entry().filter(|it| *it.key() <= now) {
            let (at, due) = first.remove_entry();
            keys.extend(due.into_iter().filter(|key| self.at.get(key) == Some(&at)));
        }
        keys
    }
}

/// How queues are used.
enum Rule {
    /// List 0 is on probation, list 1 was read again and has this part of the bytes.
    Segmented { protected: f64 },
    /// SIEVE (Zhang et al., 2024): a hand that does not go back.
    Sieve,
    /// S3-FIFO (Yang et al., 2023): list 0 is the small queue, list 1 the main one.
    S3 { ghosts: bool },
    /// CLOCK with two bits.
    Clock,
    /// The hand of the store, in the order of insertion. Items that were never read go first while
    /// they have more than a quarter of the bytes. With `sizes`, a pass counts as many times as an
    /// item is larger than the mean.
    Hand { sizes: bool },
}

/// A policy of queues.
struct Queues {
    name: &'static str,
    rule: Rule,
    capacity: u64,
    lists: Lists,
    expiries: Expiries,
    /// Bytes of the items that were never read.
    unread: u64,
    /// The number of items that the hand has passed over.
    passed: u64,
    /// SIEVE: the next item to be examined.
    hand: usize,
    ghosts: HashSet<u64>,
    ghost_queue: VecDeque<u64>,
}

impl Queues {
    fn new(name: &'static str, capacity: u64, per_second: u64, rule: Rule) -> Self {
        Queues {
            name,
            rule,
            capacity,
            lists: Lists::new(2),
            expiries: Expiries::new(per_second),
            unread: 0,
            passed: 0,
            hand: NONE,
            ghosts: HashSet::new(),
            ghost_queue: VecDeque::new(),
        }
    }

    fn remove(&mut self, at: usize) -> u64 {
        if self.hand == at {
            self.hand = self.lists.items[at].newer;
        }
        let item = self.lists.items[at];
        self.unread -= if item.read { 0 } else { item.bytes };
        self.lists.remove(at)
    }

    /// Evicts one item.
    fn evict(&mut self) {
        match self.rule {
            Rule::Segmented { .. } => {
                let oldest = self.lists.oldest(0).or_else(|| self.lists.oldest(1));
                self.remove(oldest.expect("something is there"));
            }
            Rule::Sieve => self.evict_by_sieve(),
            Rule::S3 { ghosts } => self.evict_by_s3(ghosts),
            Rule::Clock => self.evict_by_clock(),
            Rule::Hand { sizes } => self.evict_by_hand(sizes),
        }
    }

    fn evict_by_clock(&mut self) {
        loop {
            let at = self.lists.oldest(0).expect("something is there");
            let item = &mut self.lists.items[at];
            if item.frequency == 0 {
                self.remove(at);
                return;
            }
            item.frequency -= 1;
            self.lists.relink(at, 0);
        }
    }

    fn evict_by_hand(&mut self, sizes: bool) {
        for passed in 0.. {
            let at = self.lists.oldest(0).expect("something is there");
            let times = if sizes { self.times(self.lists.items[at].bytes) } else { 1 };
            let item = &mut self.lists.items[at];
            let ends_probation = self.unread * 4 > self.capacity;
            let goes = match ends_probation {
                // The store raises its bar when too few go.
                _ if passed > 8 * self.lists.table.len() => true,
                true => !item.read && times > 0,
                false => item.read && item.frequency == 0 && times > 0,
            };
            if goes {
                self.remove(at);
                return;
            }
            if !ends_probation {
                item.frequency = item.frequency.saturating_sub(times);
            }
            self.lists.relink(at, 0);
        }
    }

    /// Returns how many times a pass over the next item counts, which takes this many bytes.
    fn times(&mut self, bytes: u64) -> u8 {
        let mean = self.lists.lists[0].2 as f64 / self.lists.table.len() as f64;
        self.passed += 1;
        let fraction = (self.passed as f64 * 0.618_034).fract();
        ((bytes as f64 / mean).clamp(0.25, 4.0) + fraction) as u8
    }

    fn evict_by_sieve(&mut self) {
        loop {
            if self.hand == NONE {
                self.hand = self.lists.oldest(0).expect("something is there");
            }
            let item = &mut self.lists.items[self.hand];
            if item.frequency == 0 {
                let at = self.hand;
                self.remove(at);
                return;
            }
            item.frequency = 0;
            self.hand = item.newer;
        }
    }

    fn evict_by_s3(&mut self, ghosts: bool) {
        loop {
            let small = self.lists.lists[0].2 * 10 >= self.capacity;
            let main = self.lists.oldest(1);
            if let Some(at) = self.lists.oldest(0).filter(|_| small || main.is_none()) {
                if self.lists.items[at].frequency > 1 {
                    self.lists.items[at].frequency = 0;
                    self.lists.relink(at, 1);
                    continue;
                }
                let key = self.remove(at);
                if ghosts && self.ghosts.insert(key) {
                    self.ghost_queue.push_back(key);
                    while self.ghost_queue.len() > self.lists.table.len() {
                        let gone = self.ghost_queue.pop_front().expect("not empty");
                        self.ghosts.remove(&gone);
                    }
                }
                return;
            }
            let at = main.expect("something is there");
            if self.lists.items[at].frequency == 0 {
                self.remove(at);
                return;
            }
            self.lists.items[at].frequency -= 1;
            self.lists.relink(at, 1);
        }
    }
}

impl Policy for Queues {
    fn name(&self) -> &'static str {
        self.name
    }

    fn get(&mut self, request: &Request, now: u64) -> bool {
        for key in self.expiries.take(now) {
            if let Some(&at) = self.lists.table.get(&key) {
                self.remove(at);
            }
        }
        let Some(&at) = self.lists.table.get(&request.key) else { return false };
        let item = &mut self.lists.items[at];
        self.unread -= if item.read { 0 } else { item.bytes };
        item.read = true;
        item.frequency = (item.frequency + 1).min(3);
        if let Rule::Segmented { protected } = self.rule {
            let most = (self.capacity as f64 * protected) as u64;
            self.lists.relink(at, usize::from(most > 0));
            while self.lists.lists[1].2 > most {
                let back = self.lists.oldest(1).expect("not empty");
                self.lists.relink(back, 0);
            }
        }
        true
    }

    fn put(&mut self, request: &Request, now: u64) {
        let bytes = record_bytes(request.len);
        while self.lists.bytes() + bytes > self.capacity {
            self.evict();
        }
        let known = self.ghosts.remove(&request.key);
        self.unread += bytes;
        self.lists.insert(request.key, bytes, usize::from(known));
        self.expiries.put(request, now);
    }
}

/// A hand that passes over the items in the order of their hashes: those that were not read go,
/// unless they were stored within the last tenth of the turnover.
struct Hashed {
    capacity: u64,
    bytes: u64,
    /// Items by their hashes: key, bytes, frequency, and when it was stored.
    items: BTreeMap<u64, (u64, u8, u64)>,
    expiries: Expiries,
    hand: u64,
    stored: u64,
}

impl Hashed {
    fn new(capacity: u64, per_second: u64) -> Self {
        let (items, expiries) = (BTreeMap::new(), Expiries::new(per_second));
        Hashed { capacity, bytes: 0, items, expiries, hand: 0, stored: 0 }
    }

    fn evict(&mut self) {
        let new_from = self.stored.saturating_sub(self.items.len() as u64 / 10);
        let mut spared = 0;
        loop {
            let at = self.items.range(self.hand..).next().or_else(|| self.items.iter().next());
            let (&hash, &(bytes, frequency, stored)) = at.expect("something is there");
            self.hand = hash.wrapping_add(1);
            if frequency == 0 && (stored < new_from || spared > self.items.len()) {
                self.items.remove(&hash);
                self.bytes -= bytes;
                return;
            }
            spared += 1;
            let item = self.items.get_mut(&hash).expect("just found");
            item.1 = item.1.saturating_sub(1);
        }
    }
}

impl Policy for Hashed {
    fn name(&self) -> &'static str {
        "hash order"
    }

    fn get(&mut self, request: &Request, now: u64) -> bool {
        for key in self.expiries.take(now) {
            if let Some((bytes, ..)) = self.items.remove(&mix(key)) {
                self.bytes -= bytes;
            }
        }
        match self.items.get_mut(&mix(request.key)) {
            Some(item) => {
                item.1 = (item.1 + 1).min(3);
                true
            }
            None => false,
        }
    }

    fn put(&mut self, request: &Request, now: u64) {
        let bytes = record_bytes(request.len);
        while self.bytes + bytes > self.capacity {
            self.evict();
        }
        self.stored += 1;
        self.bytes += bytes;
        self.items.insert(mix(request.key), (bytes, 0, self.stored));
        self.expiries.put(request, now);
    }
}

/// A model of memcached 1.6: slab classes of pages, each with a segmented LRU.
///
/// HOT and WARM have up to 20 and 40 percent of a class, the rest is COLD; an item is active after
/// its second read. Pages move from one class to another when one has not evicted for longer, as
/// its automover does.
struct Memcached {
    /// Size of the chunks of each class.
    chunks: Vec<u64>,
    pages: Vec<u64>,
    pages_left: u64,
    page: u64,
    /// Three lists for each class: HOT, WARM, COLD.
    lists: Lists,
    used: Vec<u64>,
    expiries: Expiries,
    evicted: Vec<u64>,
    puts: u64,
    random: Random,
}

impl Memcached {
    fn new(bytes: u64, per_second: u64) -> Self {
        let mut chunks = vec![96u64];
        while chunks.last().is_some_and(|&last| last < 512 << 10) {
            let last = chunks[chunks.len() - 1];
            chunks.push((last * 5 / 4).next_multiple_of(8));
        }
        let (count, page) = (chunks.len(), 1 << 20);
        // The limit is of items. The table of hashes takes 8 bytes an item or two beside it.
        let page = if bytes < 64 * page { (bytes / 64).max(16 << 10) } else { page };
        Memcached {
            pages: vec![0; count],
            pages_left: bytes * 97 / 100 / page,
            page,
            lists: Lists::new(3 * count),
            used: vec![0; count],
            expiries: Expiries::new(per_second),
            evicted: vec![0; count],
            puts: 0,
            random: Random::new(3),
            chunks,
        }
    }

    fn class_of(&self, len: u32) -> usize {
        // Header, CAS id, key with its end, value with its end.
        let bytes = 48 + 8 + 9 + u64::from(len) + 2;
        self.chunks.partition_point(|&chunk| chunk < bytes).min(self.chunks.len() - 1)
    }

    fn room(&self, class: usize) -> u64 {
        // Large chunks are made of smaller ones, so that pages have little waste.
        self.pages[class] * self.page / self.chunks[class]
    }

    fn remove(&mut self, at: usize) {
        self.used[self.lists.items[at].list / 3] -= 1;
        self.lists.remove(at);
    }

    /// Moves items between the segments of a class.
    fn juggle(&mut self, class: usize) {
        let (hot, warm, cold) = (3 * class, 3 * class + 1, 3 * class + 2);
        let room = self.room(class) * self.chunks[class];
        for (list, part) in [(hot, 20), (warm, 40)] {
            while self.lists.lists[list].2 > room * part / 100 {
                let at = self.lists.oldest(list).expect("not empty");
                let active = self.lists.items[at].frequency > 1;
                if active {
                    self.lists.items[at].frequency = 1;
                }
                self.lists.relink(at, if active { warm } else { cold });
            }
        }
    }

    fn evict(&mut self, class: usize) -> bool {
        self.juggle(class);
        let (hot, warm, cold) = (3 * class, 3 * class + 1, 3 * class + 2);
        for _ in 0..5 {
            let Some(at) = self.lists.oldest(cold) else { break };
            if self.lists.items[at].frequency > 1 {
                self.lists.items[at].frequency = 1;
                self.lists.relink(at, warm);
                continue;
            }
            self.remove(at);
            return true;
        }
        let at = [cold, hot, warm].iter().find_map(|&list| self.lists.oldest(list));
        at.map(|at| self.remove(at)).is_some()
    }

    /// Takes a page from the class that evicts least for its size.
    fn move_page(&mut self, to: usize) -> bool {
        let donors = (0..self.chunks.len()).filter(|&class| class != to && self.pages[class] > 1);
        let rate = |class: usize| self.evicted[class] * 1000 / self.pages[class];
        let Some(from) = donors.min_by_key(|&class| rate(class)) else { return false };
        self.pages[from] -= 1;
        while self.used[from] > self.room(from) {
            // Whatever is in the page goes: an item anywhere in the lists.
            let list = [3 * from + 2, 3 * from + 1, 3 * from];
            let lists = list.map(|list| self.lists.oldest(list));
            let pick = self.random.next() as usize % 3;
            let at = lists[pick].or(lists[0]).or(lists[1]).or(lists[2]);
            self.remove(at.expect("the class has items"));
        }
        self.pages[to] += 1;
        true
    }
}

impl Policy for Memcached {
    fn name(&self) -> &'static str {
        "memcached (model)"
    }

    fn get(&mut self, request: &Request, now: u64) -> bool {
        for key in self.expiries.take(now) {
            if let Some(&at) = self.lists.table.get(&key) {
                self.remove(at);
            }
        }
        let Some(&at) = self.lists.table.get(&request.key) else { return false };
        let item = &mut self.lists.items[at];
        item.frequency = (item.frequency + 1).min(2);
        true
    }

    fn put(&mut self, request: &Request, now: u64) {
        let class = self.class_of(request.len);
        self.puts += 1;
        // The automover looks once a second.
        if self.puts.is_multiple_of(self.expiries.per_second / 10) {
            let rate = |class: &usize| self.evicted[*class] * 1000 / self.pages[*class].max(1);
            let hungry = (0..self.chunks.len()).max_by_key(rate).expect("there are classes");
            if self.evicted[hungry] > 0 {
                self.move_page(hungry);
            }
            self.evicted.iter_mut().for_each(|count| *count /= 2);
        }
        while self.used[class] >= self.room(class) {
            if self.pages_left > 0 {
                self.pages_left -= 1;
                self.pages[class] += 1;
            } else {
                self.evicted[class] += 1;
                if !self.evict(class) && !self.move_page(class) {
                    return;
                }
            }
        }
        let bytes = self.chunks[class];
        self.lists.insert(request.key, bytes, 3 * class);
        self.used[class] += 1;
        self.expiries.put(request, now);
        self.juggle(class);
    }
}
