// The header in C++: a guard that unlocks at the end of its scope, in a dozen lines of the user's own.
#include "check.h"
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

class Guard {
public:
    explicit Guard(lw_lock *lock, std::int64_t timeout_ms = LW_FOREVER)
    {
        if (lw_lock_acquire(lock, timeout_ms, &guard_) != LW_OK)
            throw std::runtime_error(lw_last_error());
    }
    explicit Guard(lw_semaphore *semaphore, std::int64_t timeout_ms = LW_FOREVER)
    {
        if (lw_semaphore_acquire(semaphore, 1, timeout_ms, &guard_) != LW_OK)
            throw std::runtime_error(lw_last_error());
    }
    Guard(Guard &&other) noexcept : guard_(std::exchange(other.guard_, nullptr)) {}
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;
    ~Guard() { lw_guard_unlock(guard_); }

private:
    lw_guard *guard_ = nullptr;
};

void a_guard_unlocks_at_the_end_of_its_scope(lw_lock *lock)
{
    {
        Guard held(lock);
        Guard moved(std::move(held));
        bool refused = false;
        try {
            Guard second(lock, 0);
        } catch (const std::runtime_error &error) {
            refused = std::string(error.what()) == "the lock is held by another holder";
        }
        CHECK(refused);
    }
    Guard again(lock, 0);
}

void permits_come_back_at_the_end_of_their_scope(lw_semaphore *semaphore)
{
    bool refused = false;
    {
        std::vector<Guard> both;
        both.emplace_back(semaphore);
        both.emplace_back(semaphore);
        try {
            Guard third(semaphore, 0);
        } catch (const std::runtime_error &) {
            refused = true;
        }
    }
    CHECK(refused);
    Guard again(semaphore, 0);
}

void threads_of_cxx_exclude_each_other(lw_lock *lock)
{
    int value = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int round = 0; round < 500; round++) {
                Guard guard(lock);
                value++;
            }
        });
    for (auto &thread : threads)
        thread.join();
    CHECK(value == 2000);
}

} // namespace

int main()
{
    lw_client *client = nullptr;
    lw_lock *lock = nullptr;
    lw_semaphore *semaphore = nullptr;
    OK(lw_open(own_space(), nullptr, &client));
    OK(lw_lock_new(client, "raii", &lock));
    a_guard_unlocks_at_the_end_of_its_scope(lock);
    threads_of_cxx_exclude_each_other(lock);
    OK(lw_semaphore_new(client, "raii", 2, &semaphore));
    permits_come_back_at_the_end_of_their_scope(semaphore);
    OK(lw_semaphore_free(semaphore));
    OK(lw_lock_free(lock));
    OK(lw_client_close(client));
    forget_space();
    std::puts("ok");
}
