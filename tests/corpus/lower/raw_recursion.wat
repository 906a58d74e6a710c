(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (type (;1;) (func (param i64 i64 i64 i64 i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $entry))
  (func $main (;0;) (type 1) (param $r1 i64) (param $r2 i64) (param $r3 i64) (param $r4 i64) (param $r5 i64) (param $r10 i64) (result i64)
    (local $r0 i64)
    block ;; label = @1
      local.get $r1
      local.set $r0
      local.get $r1
      i64.eqz
      br_if 0 (;@1;)
      local.get $r1
      i64.const 1
      i64.sub
      local.set $r1
      local.get $r10
      i64.const 4294972416
      i64.lt_u
      if ;; label = @2
        unreachable
      end
      local.get $r1
      local.get $r2
      local.get $r3
      local.get $r4
      local.get $r5
      local.get $r10
      i64.const 512
      i64.sub
      call $main
      local.set $r0
    end
    local.get $r0
  )
  (func $entry (;1;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    local.get $r1
    local.get $r2
    i64.const 0
    i64.const 0
    i64.const 0
    i64.const 4294975488
    call $main
  )
)
