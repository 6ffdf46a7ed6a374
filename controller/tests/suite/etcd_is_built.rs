//! Says loudly where the tests of the store on etcd are left out: `store_etcd*` and `leader_etcd` are empty then.

use weir_tests::require;

#[test]
fn etcd_is_built() {
    let missing = if cfg!(feature = "etcd") {
        weir_tests::etcd::missing()
    } else {
        vec!["built without `--features weir-controller/etcd`".to_owned()]
    };
    // Nothing else to check: where it is there, the others run.
    let _said = require::met("etcd_is_built", &missing);
}
