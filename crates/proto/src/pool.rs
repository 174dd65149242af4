//! Many first-in-first-out lists in one piece of memory.
//!
//! A relay has thousands of queues, nearly all of them empty. Here an empty list costs twelve bytes and no
//! allocation, what leaves one list makes room for any other, and moving an item from one list to another
//! does not move its bytes.

/// The memory that lists share.
#[derive(Debug)]
pub struct Pool<T> {
    items: Vec<Place<T>>,
    /// Which item follows: apart, so that what is appended does not fetch the item before it, which has long left the
    /// processor's cache.
    next: Vec<u32>,
    /// First of the places without an item, linked in the same way.
    unused: u32,
}

/// A simulated cell is as large as a line of the processor's cache: it lies in one, not across two.
#[derive(Debug)]
#[repr(align(64))]
struct Place<T>(Option<T>);

/// One list of a pool. It means something only to the pool it was filled from.
#[derive(Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

const NONE: u32 = u32::MAX;

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    /// Items in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { items: Vec::new(), next: Vec::new(), unused: NONE }
    }
}

impl<T> Pool<T> {
    /// Appends an item.
    pub fn push_back(&mut self, list: &mut List, item: T) {
        let id = match self.unused {
            NONE => {
                let id = u32::try_from(self.items.len()).expect("a pool holds fewer than 2^32 items");
                self.items.push(Place(Some(item)));
                self.next.push(NONE);
                id
            }
            id => {
                self.items[id as usize].0 = Some(item);
                self.unused = std::mem::replace(&mut self.next[id as usize], NONE);
                id
            }
        };
        self.link(list, id);
    }

    /// Puts an item before all others.
    pub fn push_front(&mut self, list: &mut List, item: T) {
        let rest = std::mem::take(list);
        self.push_back(list, item);
        if rest.head != NONE {
            self.next[list.head as usize] = rest.head;
            (list.tail, list.len) = (rest.tail, list.len + rest.len);
        }
    }

    fn link(&mut self, list: &mut List, id: u32) {
        match list.tail {
            NONE => list.head = id,
            tail => self.next[tail as usize] = id,
        }
        list.tail = id;
        list.len += 1;
    }

    fn unlink(&mut self, list: &mut List) -> Option<u32> {
        let id = list.head;
        if id == NONE {
            return None;
        }
        list.head = std::mem::replace(&mut self.next[id as usize], NONE);
        if list.head == NONE {
            list.tail = NONE;
        }
        list.len -= 1;
        Some(id)
    }

    /// Takes the first item.
    pub fn pop_front(&mut self, list: &mut List) -> Option<T> {
        let id = self.unlink(list)?;
        self.next[id as usize] = std::mem::replace(&mut self.unused, id);
        self.items[id as usize].0.take()
    }

    /// The first item.
    pub fn front(&self, list: &List) -> Option<&T> {
        self.items.get(list.head as usize)?.0.as_ref()
    }

    /// The first item, to be changed.
    pub fn front_mut(&mut self, list: &List) -> Option<&mut T> {
        self.items.get_mut(list.head as usize)?.0.as_mut()
    }

    /// The items in order.
    pub fn iter<'a>(&'a self, list: &List) -> impl Iterator<Item = &'a T> {
        let ids = std::iter::successors(Some(list.head), |id| self.next.get(*id as usize).copied());
        ids.map_while(|id| self.items.get(id as usize)?.0.as_ref())
    }

    /// Moves the first item of one list to the end of another, and gives it to be changed there.
    pub fn move_front(&mut self, from: &mut List, to: &mut List) -> Option<&mut T> {
        let id = self.unlink(from)?;
        self.link(to, id);
        self.items[id as usize].0.as_mut()
    }

    /// Drops all items of a list.
    pub fn clear(&mut self, list: &mut List) {
        while self.pop_front(list).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_are_queues(steps in proptest::collection::vec((0usize..5, 0usize..3, 0usize..3), 0..300)) {
            let mut pool = Pool::default();
            let mut lists: [List; 3] = Default::default();
            let mut oracle: [VecDeque<usize>; 3] = Default::default();
            let mut peak = 0;
            for (item, (step, a, b)) in steps.into_iter().enumerate() {
                match step {
                    0 => prop_assert_eq!(pool.pop_front(&mut lists[a]), oracle[a].pop_front()),
                    4 => {
                        pool.push_front(&mut lists[a], item);
                        oracle[a].push_front(item);
                    }
                    1 if a != b => {
                        let mut to = std::mem::take(&mut lists[b]);
                        let moved = pool.move_front(&mut lists[a], &mut to).copied();
                        lists[b] = to;
                        let expected = oracle[a].pop_front();
                        oracle[b].extend(expected);
                        prop_assert_eq!(moved, expected);
                    }
                    _ => {
                        pool.push_back(&mut lists[a], item);
                        oracle[a].push_back(item);
                    }
                }
                for (list, oracle) in lists.iter().zip(&oracle) {
                    prop_assert_eq!((list.len() as usize, pool.front(list)), (oracle.len(), oracle.front()));
                    prop_assert_eq!(list.is_empty(), oracle.is_empty());
                }
                peak = peak.max(oracle.iter().map(VecDeque::len).sum());
            }
            prop_assert_eq!(pool.items.len(), peak, "no more memory than was ever needed at once");
            lists.iter_mut().for_each(|list| pool.clear(list));
            prop_assert!(lists.iter().all(List::is_empty));
        }
    }
}
