(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (import "map" "0" (memory $.bss (;0;) 1 1 shared))
  (memory $private (;1;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $pointer i64) (local $r0 i64)
    block ;; label = @1
      i32.const 16384
      i64.load $private align=1
      local.set $r2
      i32.const 8184
      i64.const 1
      i64.store $private align=1
      i64.const 4294975488
      local.tee $r3
      i64.const -8
      i64.add
      local.set $r3
      local.get $r2
      i64.eqz
      br_if 0 (;@1;)
      i64.const 8589934592
      local.set $r3
    end
    block ;; label = @1
      block ;; label = @2
        block ;; label = @3
          block ;; label = @4
            local.get $r3
            local.tee $pointer
            i64.const 32
            i64.shr_u
            i32.wrap_i64
            i32.const 1
            i32.sub
            br_table 0 (;@4;) 1 (;@3;) 2 (;@2;)
          end
          local.get $pointer
          i32.wrap_i64
          i64.load $private align=1
          local.set $r0
          br 2 (;@1;)
        end
        local.get $pointer
        i32.wrap_i64
        i64.load align=1
        local.set $r0
        br 1 (;@1;)
      end
      unreachable
    end
    local.get $r0
  )
)
